"""A spec in which every section of the schema is there, and the way to another value of any field."""

from typing import Any

from pydantic import ValidationError

from rlctl.spec.base import Model
from rlctl.spec.fields import Leaf, keys, leaves
from rlctl.spec.schema import Spec


def image(name: str) -> str:
    """A reference by digest; another name is another digest."""
    return f"registry.example:5000/rlctl/{name}@sha256:{name.encode().hex():0>64}"


BROUGHT = {"reward_clip": None, "batch_size": 320, "max_lag_versions": 16, "entropy_coef": "auto"}
"""Fields that another preset would change, where they were left out."""
FULL = Spec.model_validate(
    {
        "run": "full",
        "env": {"id": "CartPole-v1"},
        "policies": {
            "main": {"algorithm": {"name": "impala", **BROUGHT}},
            "other": {"algorithm": {"name": "mine:Ours", "params": {"tau": 0.9}}, "population": 2},
        },
        "roles": {"replay": {}, "inference": {}, "learner": {"replicas": 3}},
        "replay": {},
        "league": {},
        "pbt": {},
        "code": {},
        "trackers": {"wandb": {}, "mlflow": {"uri": "http://mlflow:5000", "tags": {"team": "a"}}},
        "kubernetes": {"proxy": {"image": image("proxy")}},
    }
)
IMAGES = {"core": image("core"), "actor": image("actor"), "learner": image("learner")}
CLUSTER = Spec.model_validate({**FULL.model_dump(), "target": "kubernetes", "images": IMAGES})
LEAVES = {".".join(leaf.path): leaf for leaf in leaves(FULL)}

_CANDIDATES: tuple[Any, ...] = (
    *(
        True,
        False,
        1,
        2,
        3,
        4096,
        0.25,
        0.75,
        90.0,
        "other",
        "fp32",
        "full",
        image("other"),
        "yours:Theirs",
        "7Gi",
        "nature_cnn",
        "relu",
        "lstm",
        "network",
        "atari",
    ),
    *(
        "adam",
        "rmsprop",
        "gae",
        "vtrace",
        "sample",
        "central",
        "learner",
        "kubernetes",
        "manual",
        "loadbalancer",
        "kueue",
        "eval_return",
        "elo",
        "online",
        "http://other:5000",
    ),
    *(["203.0.113.0/24"], ["ClipAction"], [84, 84], [7], {"x": 1}, {"x": 1.5}, {"x": [1.5]}, ["x"], {"x": "y"}),
)


def another(leaf: Leaf, section: Model) -> Any:
    """A valid value of the field that differs from the one it has."""
    for candidate in _CANDIDATES:
        try:
            changed = type(section).model_validate({**section.model_dump(), leaf.path[-1]: candidate}, strict=True)
        except ValidationError:
            continue
        value = getattr(changed, keys(type(changed))[leaf.path[-1]])
        if value != leaf.value and type(changed) is type(section):
            return value
    raise AssertionError(f"no other value of {leaf.path} among the candidates")


def section_of(spec: Model, path: tuple[str, ...]) -> Any:
    found: Any = spec
    for key in path[:-1]:
        found = found[key] if isinstance(found, dict) else getattr(found, keys(type(found))[key])
    return found


def with_value(section: Any, path: tuple[str, ...], value: Any) -> Any:
    """The same section with another value below it."""
    key, *rest = path
    if isinstance(section, dict):
        return {**section, key: with_value(section[key], tuple(rest), value)}
    name = keys(type(section))[key]
    inner = with_value(getattr(section, name), tuple(rest), value) if rest else value
    return section.model_copy(update={name: inner})


def changed(spec: Spec, name: str, value: Any = None) -> Spec:
    """The spec with one field changed, to `value` or to any other than it has."""
    path = tuple(name.split("."))
    leaf = {leaf.path: leaf for leaf in leaves(spec)}[path]
    new = another(leaf, section_of(spec, path)) if value is None else value
    found: Spec = with_value(spec, path, new)
    return found
