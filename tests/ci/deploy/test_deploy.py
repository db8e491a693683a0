"""Deployment to a run, on a target in memory and on a cluster in memory."""

from __future__ import annotations

import errno
import json
import re
import resource
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rlctl import __version__
from rlctl.backends.base import Check, RunState
from rlctl.backends.files import reported
from rlctl.backends.kubernetes.backend import KubernetesBackend
from rlctl.backends.kubernetes.run_state.lock import LockHolder
from rlctl.errors import BackendUnreachable, Conflict, Locked, Problem, RlctlError, SpecError
from rlctl.image_names import Reference
from rlctl.images.code import BASE_LABEL
from rlctl.images.registry.client import sha256
from rlctl.render import interpreter
from rlctl.render import templates as ours
from rlctl.spec.schema import Spec
from rlctl_ci.config.settings import Project
from rlctl_ci.core.errors import BuildStopped, Transient
from rlctl_ci.deploy.deployment import RunDeployment, Step, backend_of, handle
from rlctl_ci.deploy.policy import reach
from tests.ci.oci import Registry, registry
from tests.ci.world import project
from tests.conformance.targets import Memory, Pretended, Target

__all__ = ["registry"]

IMAGE = "registry.invalid/rlctl/none@sha256:" + "1" * 64


class Time:
    """A clock that a sleep moves."""

    def __init__(self, target: Target) -> None:
        self.s, self.target = 0.0, target

    def __call__(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        self.s += seconds
        if isinstance(self.target, Pretended):
            self.target.pass_time()


@pytest.fixture(params=["memory", "cluster"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found: Target = Memory() if request.param == "memory" else Pretended(tmp_path)
    if request.param == "cluster":  # this one has no list of storage classes
        monkeypatch.setattr(found.backend, "preflight", lambda plan, documents: [])
    found.up()
    yield found
    found.clean()


def acting(target: Target, said: list[str] | None = None, **fields: Any) -> RunDeployment:
    on_cluster = isinstance(target, Pretended)
    about: Project = project(
        target="kubernetes" if on_cluster else "local",
        builder="none",
        verify={"ready_within_s": 60, "watch_s": 5},
        **fields,
    )
    time = Time(target)
    return RunDeployment(about, target.backend, (said if said is not None else []).append, time, time.sleep)


def step(target: Target, note: str = "build 1 of pole") -> Step:
    """A deployment that begins now."""
    return Step(target.state().revision, None, note)


def source(tmp_path: Path, target: Target, more: str = "", actor: str = "replicas: 2") -> Path:
    folder = tmp_path / "source"
    folder.mkdir(exist_ok=True)
    images = f"images: {{core: {NONE}, actor: {NONE}, learner: {NONE}}}\n" if isinstance(target, Pretended) else ""
    (folder / "spec.yaml").write_text(
        f"run: pole\nenv: {{id: CartPole-v1}}\nalgorithm: {{name: impala, lr: 0.001}}\n"
        f"roles: {{actor: {{{actor}}}}}\nstop: {{agent_steps: 1000000000}}\n{images}{more}"
    )
    return folder


NONE = "registry.invalid/rlctl/none@sha256:" + "0" * 64


def made(target: Target, tmp_path: Path, mark: str = "1") -> dict[str, str]:
    """Artifacts as a builder has made them."""
    if isinstance(target, Pretended):
        return {name: IMAGE.replace("1" * 64, mark * 64) for name in ("actor", "learner")}
    folder = tmp_path / (mark * 64)
    folder.mkdir(exist_ok=True)
    return {"code": str(folder)}


def test_a_push_restarts_the_roles_that_import_code_and_no_other(target: Target, tmp_path: Path) -> None:
    said: list[str] = []
    doing = acting(target, said)
    before = target.state()
    folder = source(tmp_path, target, "code: {path: .}\n")
    assert doing.apply(step(target), folder, made(target, tmp_path)) == before.revision + 1
    after = target.state()
    changed = {role for role in after.hashes if after.hashes[role] != before.hashes[role]}
    assert changed == {"learner", "actor", "evaluator"}
    assert any("restart" in line for line in said)
    assert doing.apply(step(target), folder, made(target, tmp_path)) == after.revision, "the same again changes nothing"


@pytest.mark.parametrize("policy", ["next-run", "manual"])
def test_a_role_keeps_what_it_runs_when_its_policy_says_so(target: Target, tmp_path: Path, policy: str) -> None:
    before = target.state()
    folder = source(tmp_path, target, "code: {path: .}\n", f"replicas: 2, on_push: {policy}")
    acting(target).apply(step(target), folder, made(target, tmp_path))
    after = target.state()
    changed = {role for role in after.hashes if after.hashes[role] != before.hashes[role]}
    assert changed == {"learner", "evaluator"}


@pytest.mark.parametrize("policy", ["next-run", "manual"])
def test_a_patch_restarts_no_role_that_keeps_what_it_runs(cluster: Pretended, tmp_path: Path, policy: str) -> None:
    folder, ran = source(tmp_path, cluster), templates(cluster)
    text = (folder / "spec.yaml").read_text().replace("roles: {", f"roles: {{learner: {{on_push: {policy}}}, ")
    (folder / "spec.yaml").write_text(text)
    (folder / "templates").mkdir()
    for role in ("learner", "evaluator"):
        patch = "spec: {template: {spec: {nodeSelector: {pool: cheap}}}}\n"
        (folder / "templates" / f"{role}.patch.yaml").write_text(patch)
    said: list[str] = []
    acting(cluster, said).apply(step(cluster), folder, {})
    changed = {name for name, template in templates(cluster).items() if template != ran[name]}
    assert changed == {"Deployment pole-evaluator"}
    assert f"learner keeps what it runs: on_push is {policy}" in said


def test_more_actors_of_a_role_that_is_held_are_more_of_what_runs(cluster: Pretended, tmp_path: Path) -> None:
    before = templates(cluster)
    acting(cluster).apply(step(cluster), source(tmp_path, cluster, actor="replicas: 1500, on_push: manual"), {})
    assert cluster.state().replicas["actor"] == 1500
    assert {name: templates(cluster)[name] for name in before} == before
    assert "Deployment pole-actor-1" in templates(cluster)


def test_the_live_fields_of_a_manager_that_is_held_change(cluster: Pretended) -> None:
    before, plain = cluster.rendered(cluster.spec()), cluster.spec(rows=2e9)
    manager = plain.roles.manager.model_copy(update={"on_push": "manual", "memory": "3Gi"})
    spec = plain.model_copy(update={"roles": plain.roles.model_copy(update={"manager": manager})})
    found = reach(spec, *cluster.rendered(spec), before[1], {role.role: role.hash for role in before[0].roles})
    assert set(found.held) == {"manager"}
    known = {one.name: one.text for one in before[1]}
    assert {one.name for one in found.documents if known.get(one.name) != one.text} == {"configmap-pole-live.yaml"}


def test_a_run_keeps_its_own_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, python = Memory(), "/opt/an env; of 100 %/bin/python"
    with monkeypatch.context() as other:
        other.setattr(sys, "executable", python)
        target.up()
    target.memory.checks = [Check("simulator", "problem", "not installed in the environment of the service")]
    before = target.memory.documents("pole")
    text = (source(tmp_path, target) / "spec.yaml").read_text().replace("0.001", "0.002")
    (tmp_path / "source" / "spec.yaml").write_text(text)
    acting(target).apply(step(target), tmp_path / "source", {})
    after = target.memory.documents("pole")
    assert interpreter(after) == python
    known = {one.name: one.text for one in before}
    assert {one.role for one in after if known.get(one.name) != one.text} == {"learner"}


def test_what_the_run_cannot_become_changes_nothing(target: Target, tmp_path: Path) -> None:
    before = target.state()
    folder = source(tmp_path, target)
    text = (folder / "spec.yaml").read_text().replace("CartPole-v1", "Acrobot-v1")
    (folder / "spec.yaml").write_text(text)
    with pytest.raises(BuildStopped, match=r"env\.id"):
        acting(target).apply(step(target), folder, {})
    assert target.state() == before


def test_a_commit_names_no_image_that_the_run_has_nothing_to_do_with(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    target = Pretended(tmp_path)
    monkeypatch.setattr(target.backend, "preflight", lambda plan, documents: [])
    public, other = str(registry.image("public/actor", "1")), str(registry.image("other/actor", "1"))
    target.up()
    folder = source(tmp_path, target)
    text = (folder / "spec.yaml").read_text()
    (folder / "spec.yaml").write_text(text.replace(NONE, public))
    here: dict[str, Any] = {"registry": f"{registry.name}/team", "plain_http": True}
    acting(target, bases=[f"{registry.name}/public"], **here).apply(step(target), folder, {})
    before = target.state()
    doing = acting(target, **here)
    (folder / "spec.yaml").write_text(text.replace(NONE, public).replace(public, other, 1))
    with pytest.raises(BuildStopped, match="uses no image of"):
        doing.apply(step(target), folder, {})
    assert target.state() == before
    assert not [line for line in registry.asked if "/other/" in line]
    (folder / "spec.yaml").write_text(text.replace(NONE, str(registry.image("public/actor", "2", User="1"))))
    assert doing.apply(step(target), folder, {}) == before.revision + 1


def test_the_live_number_of_actors_stays(target: Target, tmp_path: Path) -> None:
    list(target.backend.scale("pole", {"actor": 5}))
    acting(target).apply(step(target), source(tmp_path, target, "code: {path: .}\n"), made(target, tmp_path))
    assert target.state().replicas["actor"] == 5


def test_a_request_of_the_service_is_answered_with_plain_data(tmp_path: Path) -> None:
    target = Memory()
    asked = {"project": project(builder="none").model_dump(mode="json"), "verb": "look"}
    told = handle(asked, lambda line: None, target.backend)
    assert (told["error"]["kind"], told["error"]["message"]) == ("stopped", "there is no run pole")
    target.up()
    told = handle(asked, lambda line: None, target.backend)
    assert told["result"]["revision"] == 1
    folder = source(tmp_path, target)
    (folder / "spec.yaml").write_text("run: pole\n")
    asked |= {"verb": "apply", "step": asdict(step(target)), "source": str(folder), "artifacts": {}}
    told = handle(asked, lambda line: None, target.backend)
    assert told["error"]["kind"] == "stopped"


def refusing(target: Target, error: RlctlError, times: int) -> None:
    """Its next `apply` raises that, so often, before anything is written."""
    real, left = target.backend.apply, [error] * times

    def apply(*arguments: Any, **more: Any) -> Iterator[Any]:
        if left:
            raise left.pop()
        yield from real(*arguments, **more)

    target.backend.apply = apply  # type: ignore[method-assign,assignment]


def test_a_command_of_a_person_is_waited_for_and_then_left_for_later(cluster: Pretended, tmp_path: Path) -> None:
    doing, folder = acting(cluster), source(tmp_path, cluster, "code: {path: .}\n")
    before = cluster.state()
    refusing(cluster, Locked("run pole is being changed by ana"), 100)
    with pytest.raises(Transient, match="by ana") as error:
        doing.apply(step(cluster), folder, made(cluster, tmp_path))
    assert error.value.code == "locked"
    assert cluster.state() == before


def test_a_full_disk_of_the_target_is_told_as_such(target: Target) -> None:
    def full(run: str) -> Any:
        with reported("cannot look"):
            raise OSError(errno.ENOSPC, "No space left on device")

    target.backend.find = full  # type: ignore[method-assign]
    asked = {"verb": "look", "project": acting(target).project.model_dump(mode="json")}
    assert handle(asked, print, target.backend)["error"]["full"]


def test_a_target_that_is_away_before_the_first_write_is_told_as_such(target: Target, tmp_path: Path) -> None:
    doing, found, now = acting(target), target.backend.find, step(target)

    def away(run: str) -> Any:
        target.backend.find = found  # type: ignore[method-assign]
        raise BackendUnreachable("it does not answer")

    target.backend.find = away  # type: ignore[method-assign]
    with pytest.raises(Transient, match="it does not answer") as error:
        doing.apply(now, source(tmp_path, target, "code: {path: .}\n"), {})
    assert error.value.code == "away"


def test_a_run_that_is_free_again_is_changed(target: Target, tmp_path: Path) -> None:
    before = target.state()
    refusing(target, Locked("run pole is being changed by ana"), 3)
    folder = source(tmp_path, target, "code: {path: .}\n")
    assert acting(target).apply(step(target), folder, made(target, tmp_path)) == before.revision + 1


@pytest.mark.parametrize("error", [Conflict("owned by alice"), SpecError([Problem("", "no such field")])])
def test_what_the_target_refuses_changes_nothing(target: Target, tmp_path: Path, error: RlctlError) -> None:
    before = target.state()
    refusing(target, error, 1)
    with pytest.raises(BuildStopped, match=r"owned by alice|no such field"):
        acting(target).apply(step(target), source(tmp_path, target, "code: {path: .}\n"), made(target, tmp_path))
    assert target.state() == before


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = Pretended(tmp_path)
    monkeypatch.setattr(found.backend, "preflight", lambda plan, documents: [])
    found.up()
    return found


def templates(cluster: Pretended) -> dict[str, Any]:
    """Template of the pods of every workload."""
    workloads = ("Deployment", "StatefulSet")
    return {str(key): thing["spec"]["template"] for key, thing in cluster.api.objects.items() if key.kind in workloads}


def test_the_service_changes_the_run_of_its_configuration_whoever_has_started_it(
    cluster: Pretended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "pod"))  # another user on another machine
    api, before = cluster.api, cluster.state()
    pod = KubernetesBackend(api=api, me=LockHolder("ci", "pod", 1), clock=api.clock, sleep=api.sleep, now=api.now)
    monkeypatch.setattr(pod, "preflight", lambda plan, documents: [])
    cluster.backend = pod
    folder = source(tmp_path, cluster, "code: {path: .}\n")
    with pytest.raises(BuildStopped, match="is owned by alice@desk"):
        acting(cluster).apply(step(cluster), folder, made(cluster, tmp_path))
    about = project(target="kubernetes", registry="registry.invalid", builder="none")
    configured = backend_of(about)
    assert isinstance(configured, KubernetesBackend)
    pod.take_over = configured.take_over
    assert acting(cluster).apply(step(cluster), folder, made(cluster, tmp_path)) == before.revision + 1
    assert pod.take_over == {"pole"}
    assert not configured.force_conflicts


def test_a_patch_with_a_fault_changes_nothing(cluster: Pretended, tmp_path: Path) -> None:
    before, folder = cluster.state(), source(tmp_path, cluster, "code: {path: .}\n")
    (folder / "templates").mkdir()
    (folder / "templates" / "actor.patch.yaml").write_text("spec: [1\n")
    with pytest.raises(BuildStopped, match=r"actor\.patch\.yaml"):
        acting(cluster).apply(step(cluster), folder, made(cluster, tmp_path))
    assert cluster.state() == before


HOG = "{% set x = 'x' * 300000000 %}"
"""A constant: the engine writes it into the code that it makes of a template, several times as large."""


def replaced(folder: Path, more: str = "") -> None:
    """A template of the user's own, which says what it copies."""
    path = folder / "templates" / "kubernetes" / "tensorboard.yaml.j2"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (ours() / "kubernetes" / path.name).read_text().replace("revisionHistoryLimit: 5", "revisionHistoryLimit: 6")
    path.write_text(f"# copied from rlctl {__version__}\n{more}{text}")


def test_a_template_of_a_commit_is_refused_before_it_is_rendered(
    cluster: Pretended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, folder = cluster.state(), source(tmp_path, cluster)
    replaced(folder, HOG)
    monkeypatch.setattr("rlctl_ci.deploy.deployment.for_target", lambda *_: pytest.fail("it is rendered"))
    with pytest.raises(BuildStopped, match=r"templates/kubernetes/tensorboard\.yaml\.j2 is a template of its own"):
        acting(cluster).apply(step(cluster), folder, {})
    assert cluster.state() == before


def test_a_template_that_a_person_has_applied_is_rendered_in_bounds(
    cluster: Pretended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlctl_ci.deploy.memory.bounded.__wrapped__.__defaults__", (128,))
    replaced(tmp_path)
    cluster.up()
    folder = source(tmp_path, cluster)
    replaced(folder)
    acting(cluster).apply(step(cluster), folder, {})
    before, limits = cluster.state(), resource.getrlimit(resource.RLIMIT_AS)
    replaced(folder, HOG)
    with pytest.raises(BuildStopped, match="more than 128 MiB") as error:
        acting(cluster).apply(step(cluster), folder, {})
    assert error.value.code == "memory"
    assert cluster.state() == before
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


NAMES = ("core", "actor", "learner")


class Published:
    """A run that names its images by tag, in a registry that the service may ask."""

    def __init__(self, cluster: Pretended, registry: Registry, folder: Path) -> None:
        self.cluster, self.registry, self.folder = cluster, registry, folder
        self.said: list[str] = []
        self.named = {name: f"{registry.name}/public/{name}:1" for name in NAMES}
        self.images = {name: f"{image}@{registry.image(f'public/{name}', '1').digest}"
                       for name, image in self.named.items()}  # fmt: skip
        spec = Spec.model_validate({**cluster.spec().model_dump(), "images": self.images})  # as a person's `up` has it
        list(cluster.backend.apply(*cluster.rendered(spec), spec.model_dump(mode="json")))

    def push(self, core: str = "", more: str = "", artifacts: dict[str, str] | None = None, **about: Any) -> RunState:
        """A commit: the images by tag, or another one for the core."""
        folder = source(self.folder, self.cluster, more)
        images = json.dumps(self.named | ({"core": core} if core else {}))
        text = re.sub("images: {[^\n]*", f"images: {images}", (folder / "spec.yaml").read_text())
        (folder / "spec.yaml").write_text(text)
        fields = {"registry": f"{self.registry.name}/team", "plain_http": True,
                  "bases": [f"{self.registry.name}/public"], **about}  # fmt: skip
        acting(self.cluster, self.said, **fields).apply(step(self.cluster), folder, artifacts or {})
        return self.cluster.state()


@pytest.fixture
def published(cluster: Pretended, registry: Registry, tmp_path: Path) -> Published:
    return Published(cluster, registry, tmp_path)


def with_code(registry: Registry, repository: str = "team/rlctl-actor") -> Reference:
    """An image as every builder makes it of a commit."""
    return registry.image(repository, "code", Labels={BASE_LABEL: f"{registry.name}/public/actor@sha256:{'0' * 64}"})


def test_a_push_keeps_the_digests_that_up_has_recorded_though_the_tags_have_moved_on(published: Published) -> None:
    for name in NAMES:
        published.registry.image(f"public/{name}", "1", User="1")
    assert published.push(more="model: {precision: fp32}\n").spec["images"] == published.images
    assert not published.registry.asked
    digest = published.images["core"].rpartition("@")[2]
    assert f"images.core: {published.named['core']} is {digest}" in published.said


def test_a_push_that_names_another_tag_resolves_it_once(published: Published) -> None:
    second, tag = published.registry.image("public/core", "2", User="2"), f"{published.registry.name}/public/core:2"
    assert published.push(tag).spec["images"] == published.images | {"core": f"{tag}@{second.digest}"}
    published.registry.image("public/core", "2", User="3")
    published.registry.asked.clear()
    assert published.push(tag, "model: {precision: fp32}\n").spec["images"]["core"] == f"{tag}@{second.digest}"
    assert not published.registry.asked


def test_the_tag_below_the_code_of_a_commit_holds_when_a_commit_has_no_code_any_more(published: Published) -> None:
    below = published.images["actor"]
    made = {name: str(published.registry.image(f"team/rlctl-{name}", "code", Labels={BASE_LABEL: below}))
            for name in ("actor", "learner")}  # fmt: skip
    published.push(more="code: {path: .}\n", artifacts=made)
    published.registry.image("public/actor", "1", User="1")
    assert published.push().spec["images"]["actor"] == below


def test_a_tag_that_is_not_there_changes_nothing(published: Published) -> None:
    before = published.cluster.state()
    with pytest.raises(BuildStopped, match=r"images\.core: registry .* has no .*core:2"):
        published.push(core=f"{published.registry.name}/public/core:2")
    assert published.cluster.state() == before


@pytest.mark.parametrize("how", ["digest", "tag", "list", "owner"])
def test_the_core_image_is_none_that_was_built_from_a_commit(published: Published, how: str) -> None:
    published.push()
    before, found = published.cluster.state(), with_code(published.registry)
    named = f"{published.registry.name}/team/rlctl-actor:code" if how == "tag" else str(found)
    if how == "list":  # for several kinds of machine
        kinds = {"manifests": [{"digest": published.registry.image("team/rlctl-actor", "x").digest},
                               {"digest": found.digest, "platform": {"os": "linux"}}]}  # fmt: skip
        raw = json.dumps(kinds).encode()
        published.registry.manifests["team/rlctl-actor", sha256(raw)] = raw, "application/vnd.oci.image.index.v1+json"
        named = f"{published.registry.name}/team/rlctl-actor@{sha256(raw)}"
    about: dict[str, Any] = {"sets": [f"images.core={named}"]} if how == "owner" else {}
    with pytest.raises(BuildStopped, match=r"images\.core: .* with code laid over it") as refusal:
        published.push("" if how == "owner" else named, **about)
    assert "rlctl image push" in refusal.value.hint
    assert published.cluster.state() == before
    newer = published.registry.image("public/core", "2")
    assert published.push(str(newer)).revision == before.revision + 1


def test_what_this_very_commit_was_built_into_is_no_core_image_either(published: Published) -> None:
    published.push()
    made = str(with_code(published.registry))
    with pytest.raises(BuildStopped, match=r"images\.core: .* with code laid over it"):
        published.push(made, "code: {path: .}\n", {"actor": made, "learner": made})


def test_a_core_image_that_no_registry_tells_of_is_refused(published: Published) -> None:
    published.push()
    gone = f"{published.registry.name}/public/core@sha256:{'9' * 64}"
    with pytest.raises(BuildStopped, match=r"images\.core: there is no"):
        published.push(gone)


def test_code_of_a_commit_runs_in_actor_evaluator_and_learner_and_nowhere_else(published: Published) -> None:
    published.push()
    made = {name: str(with_code(published.registry, f"team/rlctl-{name}")) for name in ("actor", "learner")}
    published.push(more="code: {path: .}\n", artifacts=made)
    runs = {
        key.name.removeprefix("pole-"): thing["spec"]["template"]["spec"]["containers"][0]["image"]
        for key, thing in published.cluster.api.objects.items()
        if key.kind in ("Deployment", "StatefulSet")
    }
    assert {name for name, image in runs.items() if image in made.values()} == {"actor-0", "evaluator", "learner"}
    assert {"manager", "modelpool", "tensorboard"} < set(runs)
