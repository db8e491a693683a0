"""`lint`, `render`, `diff` and `init`."""

import json
from pathlib import Path

import pytest

from rlctl.cli.verbs.init import DEFAULT, scaffolds
from tests.cli.conftest import Rlctl

FAULTY = """\
run: Pole
env: {id: CartPole-v1, kwarg: 3}
algorithm: {name: impala, gama: 0.9}
roles: {actor: {replicas: -1, memory: 512}}
"""


def test_lint_reports_every_problem_with_its_place_and_ends_3(rlctl: Rlctl) -> None:
    path = str(rlctl.write("faulty.yaml", FAULTY))
    result = rlctl("lint", path)
    assert result.code == 3
    lines = result.out.splitlines()
    assert [line.split(":")[:2] for line in lines] == [[path, line] for line in ("1", "2", "3", "4", "4")]
    assert "5 problems" in result.err


def test_lint_of_an_invalid_spec_is_one_json_document(rlctl: Rlctl) -> None:
    result = rlctl("lint", str(rlctl.write("faulty.yaml", FAULTY)), "-o", "json")
    assert result.code == 3
    assert result.json["error"]["reason"] == "invalid_spec"
    assert [problem["line"] for problem in result.json["problems"]] == [1, 2, 3, 4, 4]


def test_lint_ends_1_for_findings_only(rlctl: Rlctl) -> None:
    result = rlctl("lint", str(rlctl.write("endless.yaml", "run: endless\nenv: {id: CartPole-v1}\n")))
    assert result.code == 1
    assert "no stop condition" in result.out


def test_lint_ends_0_for_a_sound_spec_and_validate_is_lint(rlctl: Rlctl) -> None:
    assert rlctl("lint", rlctl.spec).code == 0
    assert rlctl("validate", rlctl.spec).out == ""


def test_lint_prints_the_schema_for_editors(rlctl: Rlctl) -> None:
    result = rlctl("lint", "--schema")
    assert result.code == 0
    assert "x-applies" in result.out
    assert json.loads(result.out)["properties"]["run"]
    assert rlctl("lint", "--schema", rlctl.spec).code == 2


def test_show_origin_names_file_and_line_set_or_default(rlctl: Rlctl) -> None:
    more = rlctl.write("more.yaml", "algorithm:\n  entropy_coef: 0.02\n")
    result = rlctl("lint", rlctl.spec, str(more), "--set", "seed=7", "--show-origin", "-o", "json")
    origins = {entry["path"]: (entry["value"], entry["origin"]) for entry in result.json["values"]}
    assert origins["algorithm.lr"] == (0.001, f"{rlctl.spec}:3")
    assert origins["algorithm.entropy_coef"] == (0.02, f"{more}:2")
    assert origins["seed"] == (7, "--set seed=7")
    assert origins["algorithm.gamma"][1] == "default"


def test_render_prints_exactly_what_up_sends(rlctl: Rlctl) -> None:
    rlctl.up()
    sent = {document.name: document.text for document in rlctl.backend.documents("pole")}
    printed = rlctl("render", rlctl.spec, "-o", "json").json["documents"]
    assert {document["name"]: document["text"] for document in printed} == sent


def test_render_is_the_same_twice_before_the_run_exists(rlctl: Rlctl) -> None:
    first = rlctl("render", rlctl.spec)
    assert first.code == 0
    assert first.out == rlctl("render", rlctl.spec).out
    assert "# ==> supervisord.conf from templates/local/supervisord.conf.j2" in first.out


def test_render_writes_files_into_an_empty_folder_only(rlctl: Rlctl) -> None:
    folder = rlctl.folder / "out"
    assert rlctl("render", rlctl.spec, "--out-dir", str(folder)).code == 0
    assert (folder / "programs" / "actor.conf").is_file()
    assert rlctl("render", rlctl.spec, "--out-dir", str(folder)).code == 9


def test_render_may_be_limited_to_a_role(rlctl: Rlctl) -> None:
    documents = rlctl("render", rlctl.spec, "--role", "actor", "-o", "json").json["documents"]
    assert {document["role"] for document in documents} == {"actor"}
    assert rlctl("render", rlctl.spec, "--role", "replay").code == 2


def test_render_of_an_invalid_spec_prints_problems_and_nothing_else(rlctl: Rlctl) -> None:
    result = rlctl("render", str(rlctl.write("faulty.yaml", FAULTY)))
    assert result.code == 3
    assert result.out == ""
    assert len(result.err.splitlines()) == 6


def test_diff_of_a_run_that_does_not_exist_is_all_of_it(rlctl: Rlctl) -> None:
    result = rlctl("diff", rlctl.spec)
    assert result.code == 1
    assert "+++ supervisord.conf" in result.out


def test_diff_is_0_without_and_1_with_differences(rlctl: Rlctl) -> None:
    rlctl.up()
    same = rlctl("diff", rlctl.spec)
    assert (same.code, same.out) == (0, "")
    changed = rlctl("diff", rlctl.spec, "--set", "algorithm.lr=2e-3")
    assert changed.code == 1
    assert changed.out.splitlines()[0] == "restart learner    algorithm.lr: 0.001 -> 0.002"
    assert '-          "lr": 0.001,' in changed.out
    assert '+          "lr": 0.002,' in changed.out
    assert "actor.conf" not in changed.out


def test_diff_names_what_up_would_refuse(rlctl: Rlctl) -> None:
    rlctl.up()
    result = rlctl("diff", rlctl.spec, "--set", "seed=3")
    assert result.code == 1
    assert result.out.startswith("refuse             seed: 0 -> 3")


def test_diff_writes_nothing(rlctl: Rlctl) -> None:
    rlctl.up()
    writes = rlctl.backend.writes
    rlctl("diff", rlctl.spec, "--set", "algorithm.lr=2e-3")
    rlctl("render", rlctl.spec)
    assert rlctl.backend.writes == writes


def test_init_copies_the_scaffold(rlctl: Rlctl) -> None:
    folder = rlctl.folder / "hello"
    result = rlctl("init", str(folder))
    assert result.code == 0
    assert "rlctl up spec.yaml" in result.err
    assert {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} == files(scaffolds()[DEFAULT])


def files(folder: Path) -> set[Path]:
    found = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {path for path in found if "__pycache__" not in path.parts}


@pytest.mark.parametrize("kind", scaffolds())
def test_init_copies_what_was_chosen_and_its_spec_is_valid(rlctl: Rlctl, kind: str) -> None:
    folder = rlctl.folder / "new"
    made = rlctl("init", str(folder), "--kind", kind, "-o", "json")
    assert {Path(one["name"]) for one in made.json["files"]} == files(scaffolds()[kind])
    (spec,) = folder.rglob("spec.yaml")
    assert f"  cd {spec.parent}\n" in made.err
    assert rlctl("render", str(spec)).code == 0


def test_init_lists_what_there_is_to_begin_with(rlctl: Rlctl) -> None:
    shown = rlctl("init", "--list")
    assert [line.split()[0] for line in shown.out.splitlines()] == list(scaffolds())
    assert all(len(line) < 120 for line in shown.out.splitlines())
    assert list(rlctl.folder.glob("*/README.md")) == [], "nothing is written"


def test_init_names_the_scaffolds_where_one_is_misspelt(rlctl: Rlctl) -> None:
    refused = rlctl("init", str(rlctl.folder / "new"), "--kind", "networks")
    assert refused.code == 2
    assert "there is no 'networks'; there is algorithm, atari, ci, continuous, environment, network" in refused.err
    assert not (rlctl.folder / "new").exists()


def test_init_says_how_to_go_there_as_a_shell_reads_it(rlctl: Rlctl) -> None:
    folder = rlctl.folder / "my run"
    assert f"  cd '{folder}'\n" in rlctl("init", str(folder)).err


def test_init_never_overwrites_without_force(rlctl: Rlctl) -> None:
    folder = rlctl.folder / "hello"
    rlctl("init", str(folder))
    assert rlctl("init", str(folder)).code == 0, "the same files again are no harm"
    name = min(path.name for path in scaffolds()[DEFAULT].iterdir() if path.is_file())
    (folder / name).write_text("mine")
    result = rlctl("init", str(folder))
    assert result.code == 9
    assert name in result.err
    assert (folder / name).read_text() == "mine"
    assert rlctl("init", str(folder), "--force").code == 0
    assert (folder / name).read_text() != "mine"


def test_init_into_a_file_is_refused(rlctl: Rlctl) -> None:
    assert rlctl("init", rlctl.spec).code == 9


def test_a_folder_that_cannot_be_written_is_told_in_words(rlctl: Rlctl) -> None:
    assert rlctl("render", rlctl.spec, "--out-dir", f"{rlctl.spec}/below").code == 2
    result = rlctl("init", f"{rlctl.spec}/below")
    assert result.code == 2
    assert "not a directory" in result.err
    assert "name another place" in result.err
    result = rlctl("init", str(rlctl.folder / ("x" * 300)))
    assert result.code == 2
    assert "file name too long" in result.err


@pytest.mark.parametrize("verb", ["up", "render", "diff"])
def test_verbs_of_a_spec_want_one(rlctl: Rlctl, verb: str) -> None:
    assert rlctl(verb).code == 2
    assert rlctl(verb, str(Path("nowhere.yaml"))).code == 3
    assert rlctl("lint").code == 2
