"""torchrl: its asynchronous collectors and its V-trace and A2C loss, in a loop as its examples write it."""

from __future__ import annotations

import sys
from typing import Any

import games
import torch
from nets import ActorCritic, one_thread
from tell import tell
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical

ENVS = {"pong": 4, "cartpole": 16}
STEPS = 32


def main(task: str) -> int:
    if task not in ENVS:
        return 2
    from torchrl.collectors import MultiAsyncCollector
    from torchrl.envs import GymWrapper, SerialEnv
    from torchrl.modules import ProbabilisticActor
    from torchrl.objectives import A2CLoss
    from torchrl.objectives.value import VTrace

    one_thread()
    pixels = task == "pong"
    leaf = "pixels" if pixels else "observation"

    def one() -> Any:
        env = games.pong() if pixels else games.cartpole()
        return GymWrapper(env, categorical_action_encoding=True, device="cpu")

    def some() -> Any:
        return SerialEnv(ENVS[task], one)

    sample = one()
    key = next(name for name in (leaf, "observation", "pixels") if name in list(sample.observation_spec.keys()))
    net = ActorCritic(pixels, 6 if pixels else 2)
    policy = TensorDictModule(Only(net, "logits"), [key], ["logits"])
    actor = ProbabilisticActor(
        policy, in_keys=["logits"], out_keys=["action"], distribution_class=Categorical, return_log_prob=True
    )
    critic = TensorDictModule(Only(net, "values"), [key], ["state_value"])
    frames = STEPS * ENVS[task]
    collector = MultiAsyncCollector(
        [some, some], actor, frames_per_batch=frames, total_frames=-1, update_at_each_batch=True, device="cpu",
        storing_device="cpu",
    )  # fmt: skip
    advantage = VTrace(gamma=0.99, value_network=critic, actor_network=actor, average_adv=False)
    loss = A2CLoss(actor_network=actor, critic_network=critic, critic_coeff=0.5, entropy_coeff=0.01)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=6e-4, alpha=0.99, eps=1e-5)
    steps = 0
    for data in collector:
        with torch.no_grad():
            data = advantage(data)
        values = loss(data.reshape(-1))
        total = sum(value for name, value in values.items() if name.startswith("loss_"))
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 40.0)
        optimizer.step()
        steps += data.numel()
        tell(steps)
    return 0


class Only(torch.nn.Module):
    """Logits or value, over any number of leading dimensions; layers that only the other needs are not computed."""

    def __init__(self, net: ActorCritic, head: str) -> None:
        super().__init__()
        self.net, self.head = net, head

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        own = 3 if self.net.pixels else 1
        lead = obs.shape[:-own]
        found: torch.Tensor = getattr(self.net, self.head)(obs.reshape(-1, *obs.shape[-own:]))
        return found.reshape(*lead, -1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
