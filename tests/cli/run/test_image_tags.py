"""Images by tag: resolved once through the registry, recorded, and held; over real HTTP, on a cluster in memory."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import pytest
import yaml

from rlctl.backends.kubernetes.backend import KubernetesBackend
from tests.backends.kubernetes.fakes.lab import Lab
from tests.cli.apply.test_atomic import CLAIM
from tests.cli.clusters import CLUSTER_SPEC, DIGEST
from tests.cli.conftest import Rlctl
from tests.images.conftest import registry
from tests.images.fakes import DIGEST as CODE
from tests.images.fakes import FakeRegistry

__all__ = ["registry"]

NAMES = ("core", "actor", "learner")


class Team:
    """A cluster in memory, a registry on loopback, and a spec that names all images by tag."""

    def __init__(self, rlctl: Rlctl, registry: FakeRegistry) -> None:
        self.rlctl, self.registry, self.lab = rlctl, registry, Lab()
        self.lab.api.put(CLAIM)
        rlctl.targets["kubernetes"] = self._backend
        rlctl.environ["HOME"] = str(rlctl.folder)
        self.asked_cluster = 0
        self.spec = self.says("1.0")
        for name in NAMES:
            self.push(name, "1.0", "first")

    def _backend(self, context: str | None = None, namespace: str | None = None) -> KubernetesBackend:
        self.asked_cluster += 1
        return self.lab.backend()

    def says(self, tag: str, host: str = "") -> str:
        """The spec with another tag."""
        text = CLUSTER_SPEC.replace("registry.example/", f"{host or self.registry.host}/team/")
        text = text.replace(f"@{DIGEST}", f":{tag}")
        return str(self.rlctl.write("spec.yaml", f"{text}storage: {{claim: shared}}\n"))

    def push(self, name: str, tag: str, content: str) -> str:
        """Move a tag; returns its digest."""
        manifest = json.dumps(
            {"config": {"digest": "sha256:" + "c" * 64}, "layers": [], "is": [name, content]}
        ).encode()
        self.registry.images[f"/v2/team/{name}/manifests/{tag}"] = manifest
        return f"sha256:{hashlib.sha256(manifest).hexdigest()}"

    def up(self, *more: str, code: int = 0) -> str:
        result = self.rlctl("up", self.spec, "-d", *more)
        assert result.code == code, result.err
        return result.err

    def recorded(self) -> dict[str, str]:
        found = self.lab.backend().find("pole")
        assert found is not None
        return dict(found.spec["images"])

    def tags(self, tag: str, **digests: str) -> dict[str, str]:
        return {name: f"{self.registry.host}/team/{name}:{tag}@{digests[name]}" for name in NAMES}

    def asked(self) -> int:
        """Requests to the registry since the last look."""
        count = len(self.registry.asked)
        self.registry.asked.clear()
        return count

    def pulled(self, text: str) -> set[str]:
        objects = [each for each in yaml.safe_load_all(text) if each]
        pods = [each["spec"]["template"]["spec"] for each in objects if each["kind"] in ("Deployment", "StatefulSet")]
        return {container["image"] for pod in pods for container in pod["containers"]}

    def away(self) -> None:
        """From now on the registry answers no request."""
        self.registry.broken = True


@pytest.fixture
def team(rlctl: Rlctl, registry: FakeRegistry) -> Team:
    return Team(rlctl, registry)


def test_up_resolves_a_tag_once_and_shows_tag_and_digest(team: Team) -> None:
    digests = {name: team.push(name, "1.0", "now") for name in NAMES}
    told = team.up()
    for name in NAMES:
        assert f"images.{name}: {team.registry.host}/team/{name}:1.0 is {digests[name]}\n" in told
    assert team.recorded() == team.tags("1.0", **digests)
    running = {
        thing["spec"]["template"]["spec"]["containers"][0]["image"]
        for key, thing in team.lab.api.objects.items()
        if key.kind in ("Deployment", "StatefulSet")
    }
    assert running == {f"{team.registry.host}/team/{name}@{digests[name]}" for name in NAMES}
    shown = team.rlctl("history", "pole").out
    assert f"core 1.0@{digests['core'].removeprefix('sha256:')[:8]}" in shown
    assert team.rlctl("up", team.spec, "-d", "-o", "json").json["images"] == team.tags("1.0", **digests)


def test_a_second_up_is_unchanged_though_the_tags_have_moved_on_and_asks_no_registry(team: Team) -> None:
    team.up()
    before = team.recorded()
    for name in NAMES:
        team.push(name, "1.0", "moved")
    team.asked()
    told = team.up()
    assert "pole: unchanged" in told
    assert "is sha256:" in told
    assert "(recorded; `up --pull` asks the registry again)" in told
    assert team.asked() == 0
    assert team.recorded() == before
    assert team.rlctl("diff", team.spec).code == 0


def test_up_pull_asks_again_and_restarts_the_roles_whose_image_is_another(team: Team) -> None:
    digests = {name: team.push(name, "1.0", "first") for name in NAMES}
    team.up()
    assert "pole: unchanged" in team.up("--pull")
    digests["learner"] = team.push("learner", "1.0", "moved")
    dry = team.rlctl("up", team.spec, "--dry-run", "server", "--pull")
    assert "restart learner" in dry.out
    assert "restart manager" not in dry.out
    assert team.recorded() != team.tags("1.0", **digests), "a dry run records nothing"
    assert "restart: images.learner" in team.up("--pull")
    assert team.recorded() == team.tags("1.0", **digests)


def test_another_tag_in_the_spec_is_asked_for_and_the_others_hold(team: Team) -> None:
    first = {name: team.push(name, "1.0", "first") for name in NAMES}
    team.up()
    team.push("actor", "1.0", "moved")
    newer = team.push("core", "1.1", "newer")
    team.asked()
    core = f"images.core={team.registry.host}/team/core:1.1"
    assert "restart: images.core" in team.up("--set", core)
    asked = {path for path, _ in team.registry.asked}
    assert "/v2/team/core/manifests/1.1" in asked
    assert "/v2/team/actor/manifests/1.0" not in asked
    assert team.recorded()["core"] == f"{team.registry.host}/team/core:1.1@{newer}"
    assert team.recorded()["actor"] == team.tags("1.0", **first)["actor"]


def test_going_back_goes_back_to_the_digest_that_ran(team: Team) -> None:
    first = {name: team.push(name, "1.0", "first") for name in NAMES}
    team.up()
    for name in NAMES:
        team.push(name, "1.0", "moved")
    team.up("--pull")
    assert team.rlctl("rollback", "1", "--run", "pole").code == 0
    assert team.recorded() == team.tags("1.0", **first)
    team.away()
    printed = team.rlctl("render", team.spec)
    assert team.pulled(printed.out) == {f"{team.registry.host}/team/{name}@{first[name]}" for name in NAMES}
    assert "pole: unchanged" in team.up()


def test_render_prints_what_up_sends_offline_once_that_is_recorded(team: Team) -> None:
    before = team.rlctl("render", team.spec)
    assert before.code == 0
    assert "images.core: " in before.err
    team.up()
    sent = {each.name: each.text for each in team.lab.backend().documents("pole")}
    team.away()
    for name in NAMES:
        team.push(name, "1.0", "moved")
    team.asked_cluster = 0
    printed = team.rlctl("render", team.spec, "-o", "json")
    assert printed.code == 0
    assert {each["name"]: each["text"] for each in printed.json["documents"]} == sent
    assert team.rlctl("up", team.spec, "--dry-run", "client").code == 0
    assert team.asked_cluster == 0
    assert team.rlctl("diff", team.spec).code == 0
    assert "pole: unchanged" in team.up()


def test_render_follows_the_index_when_somebody_else_has_pulled(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    team.up()
    mine = team.rlctl.folder / "state"
    moved = {name: team.push(name, "1.0", "moved") for name in NAMES}
    monkeypatch.setenv("XDG_STATE_HOME", str(team.rlctl.folder / "another machine"))
    team.up("--pull")
    monkeypatch.setenv("XDG_STATE_HOME", str(mine))
    assert "pole: unchanged" in team.up()
    team.away()
    assert team.pulled(team.rlctl("render", team.spec).out) == {
        f"{team.registry.host}/team/{name}@{moved[name]}" for name in NAMES
    }


@pytest.mark.parametrize("verb", [["up", "-d"], ["render"], ["diff"], ["up", "--dry-run", "client"]])
def test_a_registry_that_does_not_answer_is_4_and_advises_a_digest(team: Team, verb: list[str]) -> None:
    team.away()
    result = team.rlctl(*verb, team.spec)
    assert (result.code, result.out) == (4, "")
    assert "give a digest" in result.err
    for name in NAMES:
        assert f"images.{name}: registry {team.registry.host} does not say what" in result.err
    assert not [key for key in team.lab.api.objects if key.kind in ("Deployment", "StatefulSet", "ConfigMap")]
    digests = [f"--set=images.{name}={team.registry.host}/team/{name}@{DIGEST}" for name in NAMES]
    assert team.rlctl("render", team.spec, *digests).code == 0


def test_pull_from_a_registry_that_does_not_answer_changes_nothing(team: Team) -> None:
    team.up()
    before = team.recorded()
    team.away()
    assert "give a digest" in team.up("--pull", code=4)
    assert team.recorded() == before


def test_tags_that_no_registry_has_are_all_named_with_their_lines(team: Team) -> None:
    team.says("9.9")
    told = team.up(code=3)
    for line, name in ((8, "core"), (9, "actor"), (10, "learner")):
        where = f"spec.yaml:{line}:3: images.{name}: registry {team.registry.host} has no "
        assert f"{where}{team.registry.host}/team/{name}:9.9; push it, or name another" in told
    team.says("1.0", "localhost")
    assert "lies on one machine alone; `rlctl image push` sends it" in team.up(code=3)


def test_lint_knows_tags_and_asks_nobody(team: Team) -> None:
    team.away()
    assert team.rlctl("lint", team.spec).code in (0, 1)
    assert team.asked() == 0
    assert team.asked_cluster == 0


def test_a_private_registry_is_asked_with_the_login_of_docker(team: Team) -> None:
    team.registry.door = "bearer"
    assert "give a digest" in team.up(code=4)
    auth = {"auths": {team.registry.host: {"auth": base64.b64encode(b"me:secret").decode()}}}
    docker = Path(team.rlctl.environ["HOME"], ".docker")
    docker.mkdir()
    (docker / "config.json").write_text(json.dumps(auth))
    team.up()
    assert team.recorded()["core"].startswith(f"{team.registry.host}/team/core:1.0@sha256:")


def test_an_image_for_several_machines_is_pulled_by_the_digest_of_its_list(team: Team) -> None:
    kinds = [{"digest": "sha256:" + digit * 64, "platform": {"os": "linux"}} for digit in "12"]
    manifest = json.dumps({"mediaType": "application/vnd.oci.image.index.v1+json", "manifests": kinds}).encode()
    team.registry.images["/v2/team/core/manifests/1.0"] = manifest
    team.up()
    assert team.recorded()["core"].endswith(f":1.0@sha256:{hashlib.sha256(manifest).hexdigest()}")


def test_an_answer_that_is_no_manifest_is_refused(team: Team) -> None:
    team.registry.images["/v2/team/core/manifests/1.0"] = b'{"welcome": "to the proxy"}'
    told = team.up(code=4)
    assert "images.core: " in told
    assert "no manifest" in told


def test_a_digest_beside_a_tag_is_asked_of_nobody(team: Team) -> None:
    team.away()
    digests = [f"--set=images.{name}={team.registry.host}/team/{name}:1.0@{DIGEST}" for name in NAMES]
    told = team.up(*digests)
    assert "images.core: " not in told
    assert team.recorded() == team.tags("1.0", **dict.fromkeys(NAMES, DIGEST))
    assert "pole: unchanged" in team.up(), "the same tag, whose digest is recorded"


def test_one_machine_has_no_use_for_tags_and_none_for_pull(team: Team) -> None:
    team.away()
    result = team.rlctl("up", team.rlctl.spec, "-d", "--set", "images.core=r.example/core:1.0")
    assert result.code == 0
    assert "is sha256:" not in result.err
    assert team.asked() == 0
    assert team.rlctl("up", team.rlctl.spec, "-d", "--pull").code == 2


@pytest.mark.parametrize("named", ["rlctl-actor:1.0", f"rlctl-actor@{CODE}"])
def test_an_image_with_code_does_not_become_that_of_the_roles_that_run_none(team: Team, named: str) -> None:
    core = f"--set=images.core={team.registry.host}/team/{named}"
    told = team.up(core, code=3)
    assert "images.core: " in told
    assert "with code laid over it, and code runs in actor, evaluator and learner alone" in told
    assert not [key for key in team.lab.api.objects if key.kind in ("Deployment", "StatefulSet")]
    team.up()
    assert team.rlctl("up", team.spec, "--dry-run", "server", core).code == 3
    before = team.recorded()
    team.up(core, code=3)
    assert team.recorded() == before
    team.up(core.replace("images.core", "images.actor"))
