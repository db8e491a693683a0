import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rlctl.cli.options import ROLE_NAMES, complete_role, complete_scale
from rlctl.spec import json_schema
from rlctl.spec.algorithms import BUILT, KINDS, NEED_REPLAY
from rlctl.spec.base import ROLES, Model
from rlctl.spec.fields import HIDDEN, NamedSections, Section, Value, at, everywhere, hidden, mark, options
from rlctl.spec.problems.later import LATER
from rlctl.spec.problems.other_words import FOREIGN, RENAMED
from rlctl.spec.schema import Spec
from rlctl.spec.units import cores, mebibytes, seconds


def models() -> list[type[Model]]:
    """Every class of the schema."""
    found: list[type[Model]] = []
    waiting: list[Any] = [Spec]
    while waiting:
        option = waiting.pop()
        if isinstance(option, type) and issubclass(option, Model) and option not in found:
            found.append(option)
            for field in option.model_fields.values():
                waiting += options(field.annotation)
        waiting += [inner for inner in getattr(option, "__args__", ()) if not isinstance(option, type)]
    return found


def test_every_field_of_the_schema_is_a_section_or_says_what_a_change_does() -> None:
    assert len(models()) > 20
    for model in models():
        for name, field in model.model_fields.items():
            kinds = [at_kind for option in options(field.annotation) if (at_kind := _kind(option))]
            applies = mark(model, name)
            assert (applies is None) == bool(kinds), f"{model.__name__}.{name}"
            if applies is not None:
                assert set(applies.roles) <= set(ROLES)
                assert applies.when != "restart" or applies.roles, f"{model.__name__}.{name} restarts nobody"


def _kind(option: Any) -> bool:
    if isinstance(option, type) and issubclass(option, Model):
        return True
    return any(isinstance(inner, type) and issubclass(inner, Model) for inner in getattr(option, "__args__", ()))


def test_paths_lead_to_sections_tables_and_values() -> None:
    values = {"algorithm": {"name": "a:B"}, "policies": {"main": {"algorithm": {"name": "impala"}}}}
    assert at((), values) == Section(Spec)
    assert at(("algorithm",), values) == Section(KINDS["external"])
    assert at(("algorithm",), {}) == Section(KINDS["impala"])
    assert at(("policies", "main", "algorithm"), values) == Section(KINDS["impala"])
    assert isinstance(at(("policies",), values), NamedSections)
    assert at(("stop", "agent_steps"), values) == Value((int, type(None)))
    assert at(("stop", "nothing"), values) is None
    assert at(("env", "kwargs", "x"), values) is None


def _walk(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for below in schema.values():
            yield from _walk(below)
    elif isinstance(schema, list):
        for below in schema:
            yield from _walk(below)


def test_json_schema_describes_every_field_and_what_its_change_does() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    impala = schema["$defs"]["Impala"]
    assert impala["additionalProperties"] is False
    assert impala["properties"]["lr"]["x-applies"] == "restart"
    assert impala["properties"]["lr"]["x-read-by"] == ["learner"]
    assert "lambda" in impala["properties"]["lambda"]["description"]
    assert schema["properties"]["run"]["x-applies"] == "new_run"
    for name, definition in {**schema["$defs"], "Spec": schema}.items():
        assert definition.get("description"), name
        for field, content in definition["properties"].items():
            section = any("$ref" in part for part in _walk(content))
            assert section or "x-applies" in content, f"{name}.{field}"
    references = {part["$ref"] for part in _walk(schema) if isinstance(part.get("$ref"), str)}
    assert {reference.removeprefix("#/$defs/") for reference in references} == set(schema["$defs"])


def test_the_algorithms_and_those_of_them_that_learn_from_a_replay() -> None:
    assert set(NEED_REPLAY) == {"dqn", "apex_dqn", "r2d2", "sac", "td3"}
    assert set(BUILT) - set(NEED_REPLAY) == {"impala", "ppo", "appo"}


def _offered(schema: dict[str, Any], node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every path that an editor completes."""
    if "$ref" in node:
        yield from _offered(schema, schema["$defs"][node["$ref"].removeprefix("#/$defs/")], path)
    for alternative in (*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())):
        yield from _offered(schema, alternative, path)
    for name, below in node.get("properties", {}).items():
        yield (*path, name)
        yield from _offered(schema, below, (*path, name))


def test_the_json_schema_offers_what_is_built_and_nothing_else() -> None:
    schema = json_schema()
    offered = set(_offered(schema, schema))
    built = {path for path in everywhere() if not hidden(path)}
    assert offered == built | {("policies", "main")}


def test_the_json_schema_holds_no_default_and_no_algorithm_of_what_is_not_built() -> None:
    schema = json_schema()
    for part in _walk(schema):
        for path in (tuple(text.split(".")) for text in HIDDEN):
            default = part.get("default")
            assert not isinstance(default, dict) or path[-1] not in default
    names = {value for part in _walk(schema) for value in (part.get("const"), *part.get("enum", ()))}
    assert "impala" in names
    assert "r2d2" in names


def test_a_hyperparameter_that_one_algorithm_describes_is_described_by_all() -> None:
    told: dict[str, set[bool]] = {}
    for kind in KINDS.values():
        for name, field in kind.model_fields.items():
            told.setdefault(name, set()).add(field.description is not None)
    assert [name for name, both in told.items() if len(both) > 1] == []


def test_what_is_refused_as_not_built_is_hidden_unless_other_values_of_it_can_be_used() -> None:
    usable = {"policies.*.algorithm.name", "policies", "env.id"}
    for later in LATER:
        assert (later.path in usable) != hidden(tuple(later.path.split("."))), later.path
        assert later.path in usable or later.today == "remove it", later.path


def test_the_shell_completes_roles_of_this_release() -> None:
    assert [role for role in ROLES if not hidden(("roles", role))] == list(ROLE_NAMES)
    assert complete_role("") == list(ROLE_NAMES)
    assert complete_role("in") == complete_scale("inf") == []


@pytest.mark.parametrize(("written", "amount"), [(2, 2.0), (0.5, 0.5), ("500m", 0.5), ("1500m", 1.5), ("1m", 0.001)])
def test_cores_are_read(written: object, amount: float) -> None:
    assert cores(written) == amount


@pytest.mark.parametrize("written", [0, -1, 1025, "2", "1.5m", "m", True, None, "", [1], float("nan")])
def test_wrong_cores_are_refused(written: object) -> None:
    with pytest.raises(ValueError, match="got"):
        cores(written)


@pytest.mark.parametrize(
    ("written", "amount"), [("1Gi", 1024), ("512Mi", 512), ("512 Mi", 512), ("1.5Gi", 1536), ("1G", 1e9 / 2**20)]
)
def test_memory_is_read_in_mebibytes(written: str, amount: float) -> None:
    assert mebibytes(written) == amount


@pytest.mark.parametrize("written", [1024, "1024", "0Mi", "1GB", "1 g", "Gi", "-1Gi", None, "1e3Mi", "9" * 400 + "Gi"])
def test_memory_without_its_unit_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="must be memory with its unit"):
        mebibytes(written)


@pytest.mark.parametrize(
    ("written", "amount"),
    [(30, 30), (0.5, 0.5), ("30s", 30), ("5m", 300), ("1h30m", 5400), ("2d", 172800), ("250ms", 0.25), ("1.5h", 5400)],
)
def test_durations_are_read_in_seconds(written: object, amount: float) -> None:
    assert seconds(written) == amount


@pytest.mark.parametrize("written", [0, -1, "0s", "5", "5 m", "1y", "", True, None, 1e11, float("inf"), "99999999d"])
def test_wrong_durations_are_refused(written: object) -> None:
    with pytest.raises(ValueError, match="got"):
        seconds(written)


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("2048Mi", "2Gi"),
        ("2Gi", "2Gi"),
        ("0.5Gi", "512Mi"),
        ("2G", "2G"),
        ("2000M", "2G"),
        ("1536Mi", "1536Mi"),
        ("0.3Gi", "0.3Gi"),
    ],
)
def test_memory_has_one_spelling(written: str, stored: str) -> None:
    spec = Spec.model_validate({"run": "a", "env": {"id": "b"}, "roles": {"actor": {"memory": written}}})
    assert spec.roles.actor.memory == stored
    assert mebibytes(stored) == mebibytes(written)


@pytest.mark.processes
def test_reading_a_spec_imports_nothing_heavy() -> None:
    code = "import sys, rlctl.spec, rlctl.plan; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    heavy = {"torch", "numpy", "zmq", "msgspec", "typer", "rich", "jinja2", "gymnasium", "asyncio", "kubernetes"}
    assert not heavy & set(loaded.split())


@pytest.mark.processes
def test_asking_for_a_folder_does_not_wait_for_pydantic() -> None:
    code = "import sys, rlctl.spec.layout, rlctl.errors; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert not {"pydantic", "yaml"} & set(loaded.split())


def test_the_door_of_the_package_has_nothing_that_it_does_not_list() -> None:
    import rlctl.spec

    assert all(getattr(rlctl.spec, name) is not None for name in rlctl.spec.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rlctl.spec.nothing


def test_what_other_words_are_said_to_be_here_is_in_the_schema() -> None:
    known = {".".join(path) for path in everywhere()}
    planned = {"replay.capacity", "replay.learning_starts"}
    assert {ours.split(":")[0] for ours in FOREIGN.values()} <= known | planned
    for (section, old), new in RENAMED.items():
        here = {path[-1] for path in everywhere() if section in path[:-1]}
        assert new.split(":")[0] in here, old
        assert old not in here
