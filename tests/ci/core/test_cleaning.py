"""Clean-up of all that was built: never of what a role runs, or could run again."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rlctl.backends.kubernetes.backend import KubernetesBackend
from rlctl_ci.config.settings import Config
from rlctl_ci.core.cleaning import asked, drop_copies, stale_copies, waste
from rlctl_ci.git.refs import slug
from rlctl_ci.store import pruning
from rlctl_ci.store.records import Artifact
from tests.ci.deploy.test_deploy import IMAGE, acting, made, source, step, target
from tests.ci.world import Service, project
from tests.conformance.targets import Pretended, Target

__all__ = ["target"]

HELD = "replicas: 2, on_push: manual"


def removable(target: Target, service: Service, *references: str) -> list[str]:
    """References that may go of what builds have made, of which none is kept for being new."""
    for number, reference in enumerate(references, 1):
        build = service.hook(number)
        assert build is not None
        claimed = service.claim()
        assert claimed is not None
        service.queue.artifact(build, service.owner, [Artifact("actor", reference)])
        service.queue.end(build, service.owner, "succeeded")
    config = Config.model_validate({"projects": {"pole": service.project}})
    found = waste(config, service.reading, service.clock(), keep=0, young_s=-1.0, targets=lambda *_: [target.backend])
    return sorted(one.reference for one in found)


def deployed(target: Target, tmp_path: Path, mark: str, actor: str) -> str:
    """Deploy what a builder has made; its name for the actor."""
    artifacts = made(target, tmp_path, mark)
    acting(target).apply(step(target), source(tmp_path, target, "code: {path: .}\n", actor), artifacts)
    return artifacts.get("code") or artifacts["actor"]


def test_what_a_held_role_runs_from_stays(target: Target, tmp_path: Path, service: Service) -> None:
    first = deployed(target, tmp_path, "1", "replicas: 2")
    later = [deployed(target, tmp_path, mark, HELD) for mark in "23456789"]
    assert removable(target, service, first, *later) == later[:3], "it is older than every revision that is kept"


def test_what_a_revision_would_run_again_stays(target: Target, tmp_path: Path, service: Service) -> None:
    first = deployed(target, tmp_path, "1", "replicas: 2")
    later = [deployed(target, tmp_path, mark, HELD) for mark in "23456"]
    last = deployed(target, tmp_path, "7", "replicas: 2")
    assert removable(target, service, first, *later, last) == later[:1]


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("name", [IMAGE, IMAGE.replace("@", ":v1@")])
def test_an_image_that_a_run_names_with_its_tag_stays(tmp_path: Path, service: Service, name: str) -> None:
    target = Pretended(tmp_path)
    spec = target.spec()
    spec = spec.model_copy(update={"images": spec.images.model_copy(update={"actor": IMAGE.replace("@", ":main@")})})
    plan, documents = target.rendered(spec)
    list(target.backend.apply(plan, documents, spec.model_dump(mode="json")))
    gone = IMAGE.replace("1" * 64, "2" * 64)
    assert removable(target, service, name, gone) == [gone]


def test_copies_of_repositories_that_ci_yaml_names_no_more_are_found_and_dropped(tmp_path: Path) -> None:
    config = Config.model_validate({"state": tmp_path, "projects": {"pole": project()}})
    copies = {}
    for place in ("/srv/pole.git", "/srv/left.git"):
        for kind in ("source", "history"):
            copies[place, kind] = tmp_path / "git" / f"{slug(place)}-{kind}.git"
            copies[place, kind].mkdir(parents=True)
            (copies[place, kind] / "pack").write_bytes(b"x" * 8192)
    found = stale_copies(config)
    assert {*found} == {path for (place, _), path in copies.items() if place == "/srv/left.git"}
    assert all(size >= 8192 for size in found.values())
    drop_copies(found)
    assert {path.name for path in (tmp_path / "git").glob("*.git")} == {
        path.name for (place, _), path in copies.items() if place == "/srv/pole.git"
    }
    assert stale_copies(config) == {}


@pytest.fixture
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubeconfig with two contexts; neither answers."""
    names = ("old", "new")
    values = {
        "current-context": "new",
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u", "namespace": "team"}} for name in names],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(values))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))


@pytest.mark.usefixtures("home", "contexts")
def test_targets_that_ci_yaml_names_no_more_are_asked_too_and_so_is_this_machine(service: Service) -> None:
    build = service.hook(1)
    assert build is not None
    assert service.claim() is not None
    service.queue.plan_deploy(build, service.owner, "pole", 1, {"cluster": ["old", "team"]})
    service.queue.decide(build, service.owner, "failed", "failed", "")
    pruning.forget(service.database, [build], delivered_until=0)
    moved = project(target="kubernetes", registry="registry.invalid/team")
    config = Config.model_validate({"projects": {"pole": moved}})

    def places(*gone: tuple[str, str]) -> list[tuple[str, ...]]:
        found = asked(config, service.reading, gone)
        return [(one.context, one.namespace) if isinstance(one, KubernetesBackend) else (one.name,) for one in found]

    assert places() == [("local",), ("new", "team"), ("old", "team")]
    assert places(("old", "team")) == [("local",), ("new", "team")]


def test_a_deployment_tells_the_context_and_namespace_that_were_meant(target: Target) -> None:
    live = acting(target).look()
    assert live is not None
    backend = target.backend
    on_cluster = isinstance(backend, KubernetesBackend)
    assert live["baseline"]["cluster"] == ([backend.context, backend.namespace] if on_cluster else [])
