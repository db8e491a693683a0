"""Models on a volume, for ever: one immutable file of weights and a sidecar that says what they are."""

from __future__ import annotations

import hashlib
import logging
import re
from contextlib import suppress
from pathlib import Path

import msgspec

from rlctl_agents.runtime.storage import replace_file
from rlctl_agents.types.experience import ModelRef

FORMAT = 1
POLICY = re.compile(r"[a-z0-9]([-a-z0-9]{0,18}[a-z0-9])?")
_SUFFIX = ".safetensors"

log = logging.getLogger(__name__)


class Sidecar(msgspec.Struct, frozen=True):
    """Metadata beside the weights. The weights are there whenever this is."""

    format: int
    ref: ModelRef
    sha256: str
    bytes: int


class KeptModels:
    """The models of a folder.

    Args:
        folder: models/, on the volume.
        others_keep: another process puts models there, too; what is not known is looked for.
    """

    def __init__(self, folder: Path, *, others_keep: bool = False) -> None:
        self._folder, self._others_keep = folder, others_keep
        self._known: dict[ModelRef, Path] = {}
        self._look("*")

    def _look(self, stem: str) -> None:
        for path in sorted(self._folder.glob(f"{stem}.json")):
            try:
                sidecar = msgspec.json.decode(path.read_bytes(), type=Sidecar)
                if sidecar.format != FORMAT:
                    raise ValueError(f"format {sidecar.format}")
                self._known[sidecar.ref] = path
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                log.error("%s is damaged and not used: %s", path.name, error)

    def keep(self, ref: ModelRef, sha256: str, data: bytes) -> None:
        """Store a model; it is on the disk when this returns. Kept already: nothing.

        Raises:
            ValueError: the policy's name cannot be part of a file name, or other weights were kept under this ref.
            OSError: the volume refuses.
        """
        if not POLICY.fullmatch(ref.policy):
            raise ValueError(f"{ref.policy!r} is not the name of a policy")
        if ref in self._known:
            with suppress(OSError, msgspec.MsgspecError):
                if msgspec.json.decode(self._known[ref].read_bytes(), type=Sidecar).sha256 == sha256:
                    return
            raise ValueError(f"other weights were kept as {ref}")
        stem = _stem(ref, sha256[:12])
        replace_file(self._folder / f"{stem}{_SUFFIX}", data, durable=True)
        sidecar = Sidecar(FORMAT, ref, sha256, len(data))
        replace_file(self._folder / f"{stem}.json", msgspec.json.encode(sidecar) + b"\n", durable=True)
        self._known[ref] = self._folder / f"{stem}.json"

    def newest(self, policy: str) -> ModelRef | None:
        """Newest kept version of the newest lineage."""
        refs = [ref for ref in self._known if ref.policy == policy]
        return max(refs, default=None)

    def policies(self) -> set[str]:
        """Policies of which something was kept."""
        return {ref.policy for ref in self._known}

    def forget(self, ref: ModelRef) -> None:
        """Forget a model that cannot be read; its files stay where they are."""
        self._known.pop(ref, None)

    def read(self, ref: ModelRef) -> tuple[str, bytes] | None:
        """Checksum and weights, checked; None when there are none, or what is there is damaged."""
        if ref not in self._known and self._others_keep and POLICY.fullmatch(ref.policy):
            self._look(_stem(ref, "*"))
        path = self._known.get(ref)
        if path is None:
            return None
        try:
            sidecar = msgspec.json.decode(path.read_bytes(), type=Sidecar)
            data = path.with_suffix(_SUFFIX).read_bytes()
        except (OSError, msgspec.MsgspecError) as error:
            log.error("%s cannot be read: %s", path.name, error)
            return None
        if len(data) != sidecar.bytes or hashlib.sha256(data).hexdigest() != sidecar.sha256:
            log.error("%s is damaged: its bytes are not those that were kept", path.with_suffix(_SUFFIX).name)
            return None
        return sidecar.sha256, data


def _stem(ref: ModelRef, end: str) -> str:
    return f"{ref.policy}-l{ref.lineage:04d}-v{ref.version:012d}-{end}"
