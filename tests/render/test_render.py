"""Templates and the encoding of values: whatever a value holds, a document keeps its shape."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from supervisor.datatypes import dict_of_key_value_pairs
from supervisor.options import UnhosedConfigParser

from rlctl.errors import SpecError
from rlctl.plan import Plan, RolePlan, make
from rlctl.render import (
    cluster_documents,
    environment,
    for_target,
    local_documents,
    render,
    templates,
    to_ini,
    to_yaml,
)
from rlctl.spec.layout import Layout
from tests.render.cluster import spec_of
from tests.support.memory import MemoryPlace

GOLDEN = Path(__file__).parent / "golden"
UID = "0123456789abcdef" * 2


def make_plan(**fields: Any) -> Plan:
    actor = RolePlan(
        "actor", 2, 1.5, 2048.0, 0, 1, {"role": "actor", "spec": {"env": {"id": "CartPole-v1"}}}, "aaaaaaaaaaaa"
    )
    manager = RolePlan("manager", 1, 1.0, 512.0, 0, 1, {"role": "manager"}, "bbbbbbbbbbbb")
    learner = RolePlan("learner", 1, 4.0, 4096.0, 1, 4, {"role": "learner", "spec": {"lr": 1e-05}}, "cccccccccccc")
    values = {"live": {"stop": {"eval_return": 475.0}}, "code_path": "/home/me/project", **fields}
    return Plan("cartpole", UID, "0.1", "local", (manager, learner, actor), **values)


def rendered(plan: Plan, root: str = "/data/runs/cartpole-01234567") -> dict[str, str]:
    made = local_documents(
        plan, layout=Layout(Path(root)), sockets=Path("/tmp/rlctl-1000/01234567"), python="/venv/bin/python"
    )
    return {document.name: document.text for document in made}


def ini(text: str) -> UnhosedConfigParser:
    parser = UnhosedConfigParser()
    parser.read_string(text)
    return parser


@pytest.mark.parametrize("name", ["supervisord.conf", "watch.conf", "programs/manager.conf", "programs/actor.conf"])
def test_documents_equal_their_golden_copies(name: str) -> None:
    assert rendered(make_plan())[name] == (GOLDEN / Path(name).name).read_text()


def test_documents_come_in_a_stable_order_and_twice_the_same() -> None:
    assert rendered(make_plan()) == rendered(make_plan())
    assert list(rendered(make_plan())) == [
        "supervisord.conf", "watch.conf", "programs/manager.conf", "programs/learner.conf", "programs/actor.conf",
        "manager-bbbbbbbbbbbb.json", "learner-cccccccccccc.json", "actor-aaaaaaaaaaaa.json", "live.json",
    ]  # fmt: skip


def test_a_target_has_the_documents_of_its_own_renderer_and_this_machine_needs_a_place() -> None:
    spec = spec_of()
    on_cluster = make(spec, uid=UID, base=Path("/nowhere"))
    assert for_target(on_cluster, spec, None, "/venv/bin/python") == cluster_documents(on_cluster, spec)

    place = MemoryPlace(UID, Layout(Path("/data/runs/cartpole-01234567")), Path("/tmp/rlctl-1000/01234567"))
    here = for_target(make_plan(), spec, place, "/venv/bin/python")
    assert {document.name: document.text for document in here} == rendered(make_plan())
    with pytest.raises(AssertionError, match="without a place"):
        for_target(make_plan(), spec, None, "/venv/bin/python")


def test_another_number_of_replicas_changes_no_document() -> None:
    plan = make_plan()
    more = [
        RolePlan(**{**{name: getattr(role, name) for name in role.__slots__}, "replicas": 9}) for role in plan.roles
    ]
    assert rendered(plan) == rendered(
        Plan(**{**{name: getattr(plan, name) for name in plan.__slots__}, "roles": tuple(more)})
    )


def test_threads_follow_the_resources() -> None:
    assert 'OMP_NUM_THREADS="4"' in rendered(make_plan())["programs/learner.conf"]
    assert 'OMP_NUM_THREADS="1"' in rendered(make_plan())["programs/actor.conf"]


def test_only_roles_with_data_of_their_own_get_the_volume() -> None:
    made = rendered(make_plan())
    assert "--volume" in made["programs/learner.conf"]
    assert "--volume" not in made["programs/actor.conf"]


@pytest.mark.parametrize(
    "folder", ["/data/my runs", "/data/50%", '/data/it\'s "here"', "/data/a;b #c", "/data/[x]{y}$z`"]
)
def test_supervisor_reads_back_any_folder_in_a_command(folder: str) -> None:
    text = "[program:x]\n" + "command = " + to_ini(["/bin/python", "--root", folder, "last"]) + "\n"
    command = ini(text).get("program:x", "command") % {}
    assert shlex.split(command) == ["/bin/python", "--root", folder, "last"]


def test_a_run_folder_that_supervisor_cannot_read_is_refused_with_its_name() -> None:
    with pytest.raises(SpecError) as caught:
        rendered(make_plan(), root="/data/run #1/x")
    (problem,) = caught.value.problems
    assert "/data/run #1/x" in problem.message
    assert problem.file.endswith("supervisord.conf.j2")
    assert problem.line > 1


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1), min_size=1)
)
def test_any_words_come_back_from_a_command(words: list[str]) -> None:
    words = ["python", *words]
    parser = ini("[program:x]\ncommand = " + to_ini(words) + "\n")
    assert parser.sections() == ["program:x"]
    assert shlex.split(parser.get("program:x", "command") % {}) == words


@given(st.text())
def test_no_text_adds_a_line_or_a_section(text: str) -> None:
    try:
        value = to_ini(text)
    except ValueError:
        return
    parser = ini(f"[program:x]\ndirectory = {value}\nautostart = true\n")
    assert parser.sections() == ["program:x"]
    assert parser.options("program:x") == ["directory", "autostart"]
    assert parser.get("program:x", "directory") % {} == text


@pytest.mark.parametrize(
    "value",
    [
        "a\nb",
        "a\r\n[program:evil]",
        "\x00",
        "a\x1bb",
        "line\u2028line",
        " padded",
        "a ;comment",
        "#x",
        ["a\nb"],
        {"A": "x\n"},
    ],
)
def test_what_the_ini_format_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"must not hold|cannot read"):
        to_ini(value)


@pytest.mark.parametrize("value", ["a,b", "it's", 'say "hi" now', "50%", "a=b,C=d", "[x]", "a\tb".replace("\t", " ")])
def test_supervisor_reads_back_an_environment(value: str) -> None:
    text = to_ini({"PYTHONPATH": value, "OTHER": "1"})
    assert dict_of_key_value_pairs(text % {}) == {"PYTHONPATH": value, "OTHER": "1"}


@pytest.mark.parametrize("value", ["'quoted'", "both ' and \"", 'ends"', "a ;b"])
def test_an_environment_that_supervisor_would_misread_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="supervisor cannot"):
        to_ini({"PYTHONPATH": value})


@pytest.mark.parametrize("value", [1.5, None, {"1A": "x"}, {"A": 1}, [1], object()])
def test_what_is_no_text_is_refused_by_the_ini_format(value: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        to_ini(value)


def test_lists_and_switches_are_written_as_supervisor_reads_them() -> None:
    assert (to_ini(True), to_ini(False), to_ini(10)) == ("true", "false", "10")


TEXT = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_yaml_reads_back_any_value_and_nothing_else(value: Any) -> None:
    text = f"before: 1\nvalue: {to_yaml(value)}\nafter: 2\n"
    assert yaml.safe_load(text) == {"before": 1, "value": value, "after": 2}


@pytest.mark.parametrize(
    ("value", "text"), [(1e-05, "1.0e-05"), (6e-4, "0.0006"), (1e16, "1.0e+16"), (2.0, "2.0"), (1e300, "1.0e+300")]
)
def test_floats_are_floats_in_yaml(value: float, text: str) -> None:
    assert to_yaml(value) == text
    assert yaml.safe_load(text) == value
    assert type(yaml.safe_load(text)) is float


@pytest.mark.parametrize(
    "value", ["no", "010", "12:30:45", "1e5", "~", "2026-01-01", "a: b", "x\n  hostNetwork: true", "{{ x }}"]
)
def test_text_stays_text_in_yaml(value: str) -> None:
    assert yaml.safe_load(f"key: {to_yaml(value)}") == {"key": value}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {1: 2}, object()])
def test_what_yaml_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"finite|surrogates|strings|plain data"):
        to_yaml(value)


def faulty(source: str, **values: Any) -> SpecError:
    engine = environment("yaml", jinja2.DictLoader({"kind.yaml.j2": source}))
    with pytest.raises(SpecError) as caught:
        render(engine, "kind.yaml.j2", values)
    return caught.value


def test_a_missing_name_is_shown_with_template_and_line() -> None:
    (problem,) = faulty("a: 1\nb: {{ role.full_nam }}\n", role={"full_name": "x"}).problems
    assert (problem.file, problem.line) == ("kind.yaml.j2", 2)
    assert "full_nam" in problem.message


def test_a_syntax_error_is_shown_with_template_and_line() -> None:
    (problem,) = faulty("a: 1\nb: {{ role \nc: 2\n").problems
    assert (problem.file, problem.line) == ("kind.yaml.j2", 3)


def test_a_value_that_cannot_be_written_is_shown_with_template_and_line() -> None:
    error = faulty("a: 1\n\nb: {{ number }}\n", number=float("inf"))
    assert (error.problems[0].file, error.problems[0].line) == ("kind.yaml.j2", 3)
    assert error.exit_code == 3


def test_a_missing_template_is_named() -> None:
    engine = environment("yaml", jinja2.DictLoader({}))
    with pytest.raises(SpecError) as caught:
        render(engine, "gone.yaml.j2", {})
    assert "gone.yaml.j2" in str(caught.value.problems[0])


def test_templates_hold_values_and_no_logic() -> None:
    found = [path for target in ("local", "kubernetes") for path in (templates() / target).rglob("*.j2")]
    assert len(found) > 15
    for path in found:
        assert "{%" not in path.read_text(), path
        assert "|" not in "".join(re.findall(r"{{.*?}}", path.read_text())), path


def test_supervisors_own_parser_accepts_every_document_as_a_section() -> None:
    made = rendered(make_plan())
    for name in ("supervisord.conf", "watch.conf"):
        assert ini(made[name]).sections()
    parser = ini("[program:actor-0]\n" + made["programs/actor.conf"])
    assert parser.get("program:actor-0", "command") % {"program_name": "actor-0"} == (
        "/venv/bin/python -m rlctl_agents actor --run-file /data/runs/cartpole-01234567/run/actor-aaaaaaaaaaaa.json "
        "--manager ipc:///tmp/rlctl-1000/01234567/manager-0.rpc --name actor-0 "
        "--probe unix:/tmp/rlctl-1000/01234567/actor-0.probe"
    )
    with pytest.raises(configparser.NoOptionError):
        parser.get("program:actor-0", "numprocs")


def test_only_roles_that_import_the_users_code_are_told_where_it_lies() -> None:
    before, after = rendered(make_plan()), rendered(make_plan(code_path="/home/me/newer"))
    assert {name for name in before if before[name] != after[name]} == {"programs/actor.conf", "programs/learner.conf"}
