"""The experience channel: blocks of segments from actors to learners."""

from rlctl_agents.wire.experience.receiver import ExperienceReceiver, Outcome
from rlctl_agents.wire.experience.sender import ExperienceSender

__all__ = ["ExperienceReceiver", "ExperienceSender", "Outcome"]
