"""`rlctl image` from end to end, with a program on PATH that plays the builder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlctl.cli.verbs.image import BuilderName, ImageName
from rlctl.images.builders.choose import BUILDERS
from rlctl.images.context import DOCKERFILES
from rlctl.images.make import CODE_IN
from tests.cli.conftest import Rlctl
from tests.images.fakes import BELOW, CONFIG, DIGEST, MANIFEST, PUSHED, FakeRegistry

BUILDER = """#!{python} -IS
import json, pathlib, sys
folder, argv = pathlib.Path(__file__).parent, sys.argv[1:]
with (folder / "commands").open("a") as file:
    file.write(json.dumps(argv) + "\\n")
after = lambda option: pathlib.Path(argv[argv.index(option) + 1])
if (folder / "broken").exists() and (folder / "broken").read_text() == argv[0]:
    print("STEP 1/3: FROM base\\nunauthorized: \x1b[31mno")
    sys.exit(125)
if argv[0] == "build":
    print("STEP 1/3: FROM base")
    after("--iidfile").write_text("{config}")
    (folder / "file").write_text(after("--file").read_text())
if argv[0] == "inspect":
    here = folder / "here"  # the digest of every image that is asked for
    print(here.read_text() if here.exists() else "no such image")
    sys.exit(0 if here.exists() else 125)
if argv[0] == "push":
    after("--digestfile").write_text("{pushed}")
"""
SPEC = """\
run: lights
target: kubernetes
env: {{id: "lights:Guess"}}
code: {{path: .}}
images: {{actor: "{actor}"}}
"""


class Builder:
    """Stands for buildah."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        program = folder / "buildah"
        program.write_text(BUILDER.format(python=sys.executable, config=CONFIG, pushed=PUSHED))
        program.chmod(0o755)

    def commands(self) -> list[list[str]]:
        path = self.folder / "commands"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def verbs(self) -> list[str]:
        return [command[0] for command in self.commands()]

    def dockerfile(self) -> str:
        """That of the last build."""
        return (self.folder / "file").read_text()

    def break_(self, verb: str) -> None:
        (self.folder / "broken").write_text(verb)


@pytest.fixture
def builder(rlctl: Rlctl) -> Builder:
    made = Builder(rlctl.folder / "bin")
    rlctl.environ["PATH"] = str(made.folder)
    return made


def option(command: list[str], name: str) -> list[str]:
    return [command[at + 1] for at, word in enumerate(command) if word == name]


def test_the_choices_are_those_that_there_are() -> None:
    assert [name.value for name in BuilderName] == ["auto", *BUILDERS]
    assert [name.value for name in ImageName] == list(DOCKERFILES)


def test_build_makes_the_three_images_of_rlctl(rlctl: Rlctl, builder: Builder) -> None:
    result = rlctl("image", "build", "--tag", "1.0", "--base", "core=localhost/python:3.11-slim")
    assert result.code == 0, result.err
    commands = builder.commands()
    assert [option(command, "--tag") for command in commands] == [
        ["localhost/rlctl-core:1.0"], ["localhost/rlctl-actor:1.0"], ["localhost/rlctl-learner:1.0"],
    ]  # fmt: skip
    assert [option(command, "--target") for command in commands] == [["core"], ["actor"], ["learner"]]
    assert "BASE=localhost/python:3.11-slim" in option(commands[0], "--build-arg")
    assert not [value for value in option(commands[1], "--build-arg") if value.startswith("BASE=")]
    assert CONFIG in result.out
    assert "STEP 1/3: FROM base" in result.err


def test_only_what_is_asked_for_is_built_and_every_option_reaches_the_builder(
    rlctl: Rlctl,
    builder: Builder,
) -> None:
    result = rlctl(
        "image", "build", "--only", "actor", "--registry", "127.0.0.1:5000/team", "--tag", "x", "--no-tls-verify",
        "--build-arg", "EXTRAS=atari", "--build-arg", "TORCH_INDEX=", "--volume", "/a:/b:ro", "--network", "host", "-q",
    )  # fmt: skip
    assert (result.code, result.err) == (0, "")
    (command,) = builder.commands()
    assert option(command, "--tag") == ["127.0.0.1:5000/team/rlctl-actor:x"]
    assert {"EXTRAS=atari", "TORCH_INDEX="} <= set(option(command, "--build-arg"))
    assert option(command, "--volume") == ["/a:/b:ro"]
    assert option(command, "--network") == ["host"]
    assert "--tls-verify=false" in command


def test_push_prints_a_spec_file_of_digests_and_writes_it(rlctl: Rlctl, builder: Builder) -> None:
    path = rlctl.folder / "images.yaml"
    wanted = ["--registry", "127.0.0.1:1/team", "--only", "core", "--only", "actor", "--no-tls-verify"]
    result = rlctl("image", "push", *wanted, "--write", str(path))
    assert result.code == 0, result.err
    assert result.out == (
        f'images:\n  # over python:3.11-slim\n  core: "127.0.0.1:1/team/rlctl-core@{PUSHED}"\n'
        f'  # over python:3.11-slim\n  actor: "127.0.0.1:1/team/rlctl-actor@{PUSHED}"\n'
    )
    assert path.read_text().endswith(result.out)
    assert builder.verbs() == ["build", "push", "build", "push"]


def test_the_image_of_the_service_is_pushed_alone_and_its_reference_printed(rlctl: Rlctl, builder: Builder) -> None:
    result = rlctl(
        "image", "push", "--registry", "127.0.0.1:1/team", "--only", "ci", "--base", "ci=localhost/debian:13"
    )
    assert (result.code, result.out) == (0, f"127.0.0.1:1/team/rlctl-ci@{PUSHED}\n"), result.err
    assert option(builder.commands()[0], "--target") == ["ci"]
    overlay = rlctl.folder / "images.yaml"
    for more in (["--only", "core"], ["--write", str(overlay)]):
        refused = rlctl("image", "push", "--registry", "127.0.0.1:1/team", "--only", "ci", *more)
        assert refused.code == 2
        assert "no image of a run" in refused.err
    assert not overlay.exists()


def test_what_comes_after_a_push_is_printed_as_a_shell_reads_it(rlctl: Rlctl, builder: Builder) -> None:
    path = rlctl.folder / "my images.yaml"
    result = rlctl("image", "push", "--registry", "127.0.0.1:1", "--only", "core", "--write", str(path))
    assert f"next: rlctl up SPEC '{path}'\n" in result.err


def test_push_as_json_names_every_image(rlctl: Rlctl, builder: Builder) -> None:
    result = rlctl("image", "push", "--registry", "127.0.0.1:1", "--only", "core", "--tag", "7", "-o", "json")
    assert result.json["images"] == [
        {
            "name": "core",
            "reference": f"127.0.0.1:1/rlctl-core@{PUSHED}",
            "tag": "7",
            "what": "pushed",
            "config": CONFIG,
            "base": "python:3.11-slim",
            "sbom": None,
            "bytes": None,
            "layers": [],
        }
    ]
    assert result.json["overlay"] == {"images": {"core": f"127.0.0.1:1/rlctl-core@{PUSHED}"}}


def test_the_digest_of_a_base_is_built_upon_and_recorded(
    rlctl: Rlctl, builder: Builder, registry: FakeRegistry
) -> None:
    base, path = f"{registry.host}/team/rlctl-actor", rlctl.folder / "images.yaml"
    wanted = ["--registry", "127.0.0.1:1/team", "--no-tls-verify", "--only", "core", "--write", str(path)]
    assert rlctl("image", "push", *wanted, "--base", f"core={base}:1.0").code == 0
    arguments = option(builder.commands()[0], "--build-arg")
    assert {f"BASE={base}:1.0@{DIGEST}", f"BASE_NAME={base}:1.0", f"BASE_DIGEST={DIGEST}"} <= set(arguments)
    assert f"  # over {base}:1.0@{DIGEST}\n  core: " in path.read_text()

    # what is pushed later leaves the line of an image that stays
    more = ["--registry", "127.0.0.1:1/team", "--no-tls-verify", "--only", "actor", "--write", str(path)]
    assert rlctl("image", "push", *more, "--base", f"actor=example.org/x@{DIGEST}").code == 0
    assert f"  # over {base}:1.0@{DIGEST}\n  core: " in path.read_text()
    assert f"  # over example.org/x@{DIGEST}\n  actor: " in path.read_text()


def test_a_base_whose_registry_does_not_answer_is_recorded_by_name(rlctl: Rlctl, builder: Builder) -> None:
    result = rlctl("image", "build", "--only", "core", "--base", "core=127.0.0.1:1/python:3.11", "--no-tls-verify")
    assert result.code == 0, result.err
    assert "the digest of 127.0.0.1:1/python:3.11 is not recorded" in result.err
    assert "BASE_DIGEST=" in option(builder.commands()[0], "--build-arg")


@pytest.fixture
def spec(rlctl: Rlctl, registry: FakeRegistry) -> str:
    """A project with an actor image that is published, as one with code that lies over BELOW."""
    project = rlctl.folder / "project"
    project.mkdir()
    (project / "lights.py").write_text("LIGHTS = 2\n")
    (project / "spec.yaml").write_text(SPEC.format(actor=f"{registry.host}/team/rlctl-actor@{DIGEST}"))
    return str(project / "spec.yaml")


def push_code(registry: FakeRegistry, *more: str) -> list[str]:
    return ["image", "push", *more, "--registry", f"{registry.host}/team", "--only", "actor", "--no-tls-verify"]


def test_code_lies_over_the_image_below_the_published_one_never_over_older_code(
    rlctl: Rlctl,
    builder: Builder,
    registry: FakeRegistry,
    spec: str,
) -> None:
    result = rlctl(*push_code(registry, spec))
    assert result.code == 0, result.err
    assert builder.dockerfile().startswith(f"FROM {BELOW}\n")
    assert builder.verbs() == ["inspect", "build", "push"]
    (tag,) = option(builder.commands()[1], "--tag")
    assert tag.startswith(f"{registry.host}/team/rlctl-actor:code-")


@pytest.mark.parametrize("given", [("--tag", "1.0"), ("--build-arg", "EXTRAS=atari")])
def test_what_code_over_an_image_cannot_use_is_refused(
    rlctl: Rlctl, builder: Builder, registry: FakeRegistry, spec: str, given: tuple[str, str]
) -> None:
    for verb in ([*push_code(registry, spec), *given], ["image", "build", spec, *given]):
        result = rlctl(*verb)
        assert (result.code, result.out) == (2, "")
        assert f"{given[0]}: for rlctl's own images" in result.err
    assert builder.verbs() == []


def test_push_says_which_line_of_a_dockerignore_is_one_too_many(
    rlctl: Rlctl,
    builder: Builder,
    registry: FakeRegistry,
    spec: str,
) -> None:
    path = Path(spec).with_name(".dockerignore")
    path.write_text("# data\n" + "a\n" * 1001)
    result = rlctl(*push_code(registry, spec))
    assert (result.code, result.out) == (2, "")
    assert f"{path}:1002: 1001 patterns, and at most 1000 are read" in result.err
    assert "build" not in builder.verbs()


def test_code_that_the_registry_has_is_neither_built_nor_pushed(
    rlctl: Rlctl,
    builder: Builder,
    registry: FakeRegistry,
    spec: str,
) -> None:
    path = Path(spec).with_name("images.yaml")
    assert rlctl(*push_code(registry, spec), "--write", str(path)).code == 0
    (tag,) = option(builder.commands()[1], "--tag")
    registry.images[f"/v2/team/rlctl-actor/manifests/{tag.rpartition(':')[2]}"] = MANIFEST

    before = len(builder.commands())
    result = rlctl(*push_code(registry, spec), "-o", "json")
    assert result.code == 0, result.err
    assert [image["what"] for image in result.json["images"]] == ["there"]
    assert result.json["images"][0]["bytes"] == 111
    assert len(builder.commands()) == before


def test_a_changed_spec_or_overlay_does_not_change_the_layer(
    rlctl: Rlctl,
    builder: Builder,
    registry: FakeRegistry,
    spec: str,
) -> None:
    path = Path(spec).with_name("images.yaml")
    for _ in range(2):
        assert rlctl(*push_code(registry, spec), "--write", str(path)).code == 0
        Path(spec).write_text(Path(spec).read_text() + "seed: 1\n")
    tags = [option(command, "--tag") for command in builder.commands() if command[0] == "build"]
    assert tags[0] == tags[1]


def test_without_a_base_the_error_says_how_to_make_one(
    rlctl: Rlctl,
    builder: Builder,
    registry: FakeRegistry,
    spec: str,
) -> None:
    result = rlctl("image", "push", spec, "--registry", registry.host, "--only", "learner", "--no-tls-verify")
    assert result.code == 2
    assert "no learner image to lay the code over" in result.err
    assert "--write images.yaml" in result.err
    assert builder.commands() == []


def test_a_base_that_was_built_anew_under_its_name_gets_the_code_anew(
    rlctl: Rlctl, builder: Builder, spec: str
) -> None:
    command = ["image", "build", spec, "--only", "actor", "--base", "actor=localhost/rlctl-actor:1", "-o", "json"]
    tags = []
    for digest in (CONFIG, CONFIG, PUSHED):
        (builder.folder / "here").write_text(digest)
        tags.append(rlctl(*command).json["images"][0]["tag"])
    assert tags[0] == tags[1] != tags[2]
    assert "build" not in builder.verbs()  # the fake says that the image is here, whatever it is called


def test_the_core_image_takes_no_code(rlctl: Rlctl, builder: Builder, spec: str) -> None:
    assert "core" not in CODE_IN
    result = rlctl("image", "build", spec, "--only", "core")
    assert result.code == 2
    assert "holds no code of yours" in result.err


def test_a_spec_without_code_has_nothing_to_build(rlctl: Rlctl, builder: Builder) -> None:
    result = rlctl("image", "build", rlctl.spec)
    assert result.code == 2
    assert "no `code`" in result.err


def test_a_file_that_is_no_overlay_is_refused_before_anything_is_built(rlctl: Rlctl, builder: Builder) -> None:
    path = rlctl.write("images.yaml", "run: mine\n")
    command = ["image", "push", "--registry", "127.0.0.1:1", "--only", "core", "--write", str(path)]
    result = rlctl(*command)
    assert result.code == 9
    assert builder.commands() == []
    assert path.read_text() == "run: mine\n"
    assert rlctl(*command, "--force").code == 0
    assert PUSHED in path.read_text()


def test_a_folder_that_is_not_there_is_told_before_anything_is_built(rlctl: Rlctl, builder: Builder) -> None:
    command = ["image", "push", "--registry", "127.0.0.1:1", "--only", "core", "--write", "nodir/images.yaml"]
    result = rlctl(*command)
    assert result.code == 2
    assert "nodir/images.yaml cannot be written: there is no folder nodir" in result.err


def test_digests_of_what_was_pushed_are_printed_though_the_file_cannot_be_written(
    rlctl: Rlctl, builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rlctl.images.overlay.os.replace", full)
    path = rlctl.folder / "images.yaml"
    wanted = ["--registry", "127.0.0.1:1/team", "--only", "core", "--no-tls-verify"]
    result = rlctl("image", "push", *wanted, "--write", str(path))
    assert result.code == 2
    assert "no space left" in result.err
    assert "\n  core: " in result.out


def test_a_broken_build_shows_its_last_lines_and_exits_7(rlctl: Rlctl, builder: Builder) -> None:
    builder.break_("build")
    result = rlctl("image", "build", "--only", "core", "--tag", "1", "-q")
    assert result.code == 7
    assert result.err.splitlines()[:3] == [
        "error: buildah could not build localhost/rlctl-core:1 (exit 125)",
        "  STEP 1/3: FROM base",
        "  unauthorized: no",
    ]


def test_a_registry_that_refuses_exits_4_with_the_way_to_log_in(rlctl: Rlctl, builder: Builder) -> None:
    builder.break_("push")
    result = rlctl("image", "push", "--registry", "r.example.org", "--only", "core", "-o", "json")
    assert result.code == 4
    assert result.json["error"]["hint"] == "buildah login r.example.org"


def test_without_a_builder_it_exits_4_and_says_what_to_install(rlctl: Rlctl) -> None:
    rlctl.environ["PATH"] = str(rlctl.folder)
    result = rlctl("image", "build")
    assert result.code == 4
    assert "apt-get install buildah" in result.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["push"], "push needs --registry"),
        (["build", "--base", "core"], "must be KEY=VALUE"),
        (["build", "--base", "replay=x"], "no such image"),
        (["build", "--builder", "kaniko"], "kaniko"),
        (["build", "--registry", "NOT A HOST"], "no name of an image"),
        (["build", "--tag", "bad tag"], "--tag bad tag: no tag of an image"),
    ],
)
def test_a_wrong_command_line_exits_2(rlctl: Rlctl, builder: Builder, arguments: list[str], said: str) -> None:
    result = rlctl("image", *arguments)
    assert result.code == 2
    assert said in result.err
    assert builder.commands() == []
