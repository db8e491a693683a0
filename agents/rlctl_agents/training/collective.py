"""Collective operations of learners that step together. The only module that calls torch.distributed.

Nothing is pickled here: only tensors travel, and weights as the bytes of a generation's part.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from rlctl_agents.training.device import backend
from rlctl_agents.types.control import GroupPlace

MEET_S = 20.0
"""Longest time for the members of a group to meet, in seconds; then all ask for another group."""
STEP_S = 30.0
"""Timeout of an operation, in seconds, for the slowest member. A dead one is noticed at once: its connections close."""

T = TypeVar("T")


class GroupBroken(Exception):
    """Group that is over: a member is gone, or does not respond."""


class VoteSums(NamedTuple):
    """Sums of the votes of all members, equal on all of them."""

    ready: int  # members with a batch in hand
    held: int  # members that may not update now
    starved: int  # members without a batch that the others have waited for long enough
    world: int

    @property
    def update(self) -> bool:
        """True if all members update now: those without a batch were waited for long enough, and contribute nothing."""
        return self.held == 0 < self.ready and self.ready + self.starved == self.world


class Collective:
    """Process group of at least two learners, from meeting to breaking up. Used by one thread.

    Args:
        place: of this learner in the group.
        store: in which the members exchange their addresses; only they may read and write it.
        device: device of the gradients.
        one_machine: True if all members are on this machine: they listen on the loopback.
        meet_s: longest wait for the proofs of the other members.
        step_s: longest wait for other members in one operation.

    Raises:
        GroupBroken: a member did not come, or a process without the group's key did.
    """

    def __init__(
        self,
        place: GroupPlace,
        store: Store,
        device: torch.device,
        *,
        one_machine: bool,
        meet_s: float = MEET_S,
        step_s: float = STEP_S,
    ) -> None:
        self.rank, self.world = place.rank, place.world
        self._store = store  # torch calls it from threads of its own, and does not keep it alive
        if one_machine:
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"

        def meet() -> None:
            dist.init_process_group(
                backend(device), store=PrefixStore(f"group{place.number}", store), rank=place.rank,
                world_size=place.world, timeout=timedelta(seconds=step_s),
            )  # fmt: skip
            self._know_each_other(place, meet_s)

        self._or_broken(meet)

    def wrapped(self, module: nn.Module, *, find_unused: bool) -> DistributedDataParallel:
        """Wrap a module so that its gradients are the mean over all members as soon as `backward` has returned.

        Every member's weights become those of rank 0: broadcast them before, by `broadcast`.

        Args:
            find_unused: True if some parameters have no gradient in some batches.

        Raises:
            GroupBroken: a member is gone, or has another network.
        """
        made = self._or_broken(lambda: DistributedDataParallel(module, find_unused_parameters=find_unused))
        made.broadcast_buffers = False  # nothing is exchanged in a forward pass: buffers of a still network stay equal
        return made

    def backward(self, total: torch.Tensor) -> None:
        """Compute the gradients of a `wrapped` module's output, averaged over all members.

        Raises:
            GroupBroken: a member is gone.
        """
        self._or_broken(total.backward)

    def agree(self, *, ready: bool, held: bool, starved: bool) -> VoteSums:
        """Vote, and sum up the votes of all members.

        Raises:
            GroupBroken: a member is gone.
        """
        votes = self._summed(torch.tensor([ready, held, starved], dtype=torch.int64))
        all_ready, all_held, all_starved = (int(vote) for vote in votes)
        return VoteSums(all_ready, all_held, all_starved, self.world)

    def sums(self, values: Sequence[float]) -> list[float]:
        """The sum over all members of each value.

        Raises:
            GroupBroken: a member is gone.
        """
        return self._summed(torch.tensor(values, dtype=torch.float64)).tolist()

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all members, on the tensor's device.

        Raises:
            GroupBroken: a member is gone.
        """
        return self._summed(tensor.clone())

    def broadcast(self, data: bytes | None, seed: int) -> bytes:
        """Broadcast the bytes of one member to all.

        Args:
            data: bytes of this member; used only if its rank is `seed`.
            seed: rank of the member that sends.

        Raises:
            GroupBroken: a member is gone.
        """
        length = torch.tensor([len(data) if data is not None else 0], dtype=torch.int64)
        self._or_broken(lambda: dist.broadcast(length, seed))
        if self.rank == seed:
            assert data is not None
            carried = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        else:
            carried = torch.empty(int(length[0]), dtype=torch.uint8)
        self._or_broken(lambda: dist.broadcast(carried, seed))
        return carried.numpy().tobytes()

    def close(self) -> None:
        """Leave the group: the others notice, and ask for another one."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _know_each_other(self, place: GroupPlace, meet_s: float) -> None:
        """Authenticate this member's rank to every other, and check theirs, before anything else is sent.

        gloo accepts any connection that presents the number of a rank, which is no secret. A receiver cannot reuse a
        proof: it is valid for one direction, in one group.

        Raises:
            RuntimeError: the other end of a connection has no valid proof.
        """
        ranks = range(place.world)
        own = torch.frombuffer(bytearray(b"".join(proof(place, place.rank, to) for to in ranks)), dtype=torch.uint8)
        heard = torch.empty_like(own)
        done = dist.all_to_all_single(heard, own, async_op=True)
        assert done is not None
        done.wait(timedelta(seconds=meet_s))
        told = heard.numpy().tobytes()
        for rank in ranks:
            size = len(told) // place.world
            if not hmac.compare_digest(told[rank * size : (rank + 1) * size], proof(place, rank, place.rank)):
                raise RuntimeError(f"the other end of the connection to rank {rank} is a stranger")

    def _summed(self, tensor: torch.Tensor) -> torch.Tensor:
        self._or_broken(lambda: dist.all_reduce(tensor))
        return tensor

    def _or_broken(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except torch.OutOfMemoryError:
            self.close()
            raise
        except (RuntimeError, ValueError) as error:  # gloo, NCCL and the store raise various kinds
            self.close()
            raise GroupBroken(str(error).partition("\n")[0][:300]) from error


def proof(place: GroupPlace, sender: int, receiver: int) -> bytes:
    """Message that authenticates a rank to another one; 32 bytes."""
    return hmac.digest(place.key.encode(), f"{place.number}: {sender} to {receiver}".encode(), "sha256")
