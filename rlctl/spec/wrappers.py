"""Gymnasium's wrappers by short name: those that a spec may name, and what to use in place of the others."""

from __future__ import annotations

import re
from typing import Final

from rlctl.spec.words import CLASS_PATH, closest

FIT: Final = (
    "AddRenderObservation", "AddWhiteNoise", "AtariPreprocessing", "ClipAction", "DelayObservation", "DiscretizeAction",
    "DiscretizeObservation", "FilterObservation", "FlattenObservation", "GrayscaleObservation", "JaxToNumpy",
    "MaxAndSkipObservation", "ObstructView", "RepeatAction", "RescaleAction", "RescaleObservation",
    "ReshapeObservation", "ResizeObservation", "StickyAction", "TimeAwareObservation",
)  # fmt: skip
"""Wrappers that a spec may name."""

_OWN = "a file cannot hold a function; write a wrapper of your own and name it package.module:Class"
_SHOWS = "every copy in every process would draw pictures that nothing shows; remove it"
_CHECKED = "every answer of an environment is checked anyway; remove it"
_TENSORS = "environments hand out NumPy arrays; remove it"
UNFIT: Final = {
    "NormalizeObservation": "its moments would stay in each process and in no checkpoint; use model.normalize",
    "NormalizeReward": "its moments would stay in each process and in no checkpoint; use model.normalize",
    "ClipReward": "evaluations need raw rewards; use algorithm.reward_clip",
    "TransformReward": f"{_OWN}; rewards are scaled by algorithm.reward_scale",
    "TransformObservation": _OWN,
    "TransformAction": _OWN,
    "FrameStackObservation": "each frame would travel as often as it is shown; use env.frame_stack",
    "TimeLimit": "use env.max_episode_steps",
    "Autoreset": "environments are reset here; remove it",
    "DtypeObservation": "numbers become float32 and bytes stay bytes anyway; remove it",
    "RecordEpisodeStatistics": "returns and lengths are counted anyway; remove it",
    "RecordVideo": _SHOWS,
    "RenderCollection": _SHOWS,
    "HumanRendering": _SHOWS,
    "PassiveEnvChecker": _CHECKED,
    "OrderEnforcing": _CHECKED,
    "ArrayConversion": _TENSORS,
    "JaxToTorch": _TENSORS,
    "NumpyToTorch": _TENSORS,
}  # fmt: skip
"""Name -> reason why it is refused, and what to use in its place."""


def fault(name: str) -> str:
    """Fault of a wrapper's name in words; "" for one that a spec may name.

    Example:
        `fault("TimeAwareObservatio")` ends with "did you mean `TimeAwareObservation`?".
    """
    module, _, short = name.rpartition(":")
    if short in UNFIT and module in ("", "gymnasium.wrappers"):
        return f"{name}: {UNFIT[short]}"
    if module.startswith("gymnasium.wrappers.vector"):
        return f"{name} is for vectors; name one for a single environment"
    if short in FIT or re.fullmatch(CLASS_PATH, name):
        return ""
    spelled = {known.lower(): known for known in (*FIT, *UNFIT)}
    near = closest(name, spelled)
    hint = (
        f"; did you mean `{spelled[near]}`?"
        if near
        else f"; there are {', '.join(FIT)}, and your own package.module:Class"
    )
    return f"Gymnasium has no wrapper {name}{hint}"
