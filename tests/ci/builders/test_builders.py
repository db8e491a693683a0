"""Builders that push: what they make of a commit, where they send it, and what lies beside it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlctl.errors import BackendUnreachable
from rlctl.image_names import Reference
from rlctl.images.make import BuildOptions
from rlctl_ci.builders.append import Append
from rlctl_ci.builders.program import Program
from rlctl_ci.builders.registry import plain, registry_of
from rlctl_ci.config.settings import Config
from rlctl_ci.core.build_attempt import Job
from rlctl_ci.core.cleaning import UnusedArtifact, remove
from rlctl_ci.git.refs import fault, slug
from rlctl_ci.store.records import Artifact
from tests.ci.corpus import WORDS
from tests.ci.git.test_repository import job_of
from tests.ci.oci import Registry, elsewhere, registry
from tests.ci.web.test_injection import watched
from tests.ci.world import MAIN, Service, here, project, sha

__all__ = ["elsewhere", "registry"]


def job_for(
    folder: Path, registry: Registry, commit: str = sha(1), ref: str = MAIN, builder: str = "append",
    **more: Any,
) -> Job:  # fmt: skip
    fields = {"target": "kubernetes", "registry": f"{registry.name}/team", "plain_http": True, "builder": builder}
    return job_of(folder, commit, ref, **{**fields, "bases": [f"{registry.name}/rlctl"], **more})


@pytest.fixture
def source(tmp_path: Path, registry: Registry) -> Path:
    """A commit that is fetched already."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "lights.py").write_text("x = 1\n")
    images = ", ".join(f"{name}: {registry.image(f'rlctl/{name}', '1')}" for name in ("actor", "learner"))
    (folder / "spec.yaml").write_text(
        f"run: pole\nenv: {{id: CartPole-v1}}\ncode: {{path: .}}\nstop: {{agent_steps: 10}}\nimages: {{{images}}}\n"
    )
    return folder


def appended(job: Job, source: Path) -> Sequence[Artifact]:
    maker = Append(read=here)
    return maker.push(job, maker.make(job, source))


def proofs(registry: Registry) -> dict[str, dict[str, Any]]:
    """Repository -> the manifest of the provenance in it."""
    return {
        repository: json.loads(manifest)
        for (repository, name), (manifest, _) in registry.manifests.items()
        if name.endswith(".provenance")
    }


def statement(registry: Registry, repository: str) -> dict[str, Any]:
    digest = proofs(registry)[repository]["layers"][0]["digest"]
    found: dict[str, Any] = json.loads(registry.blobs[repository, digest])
    return found


def without_proofs(registry: Registry) -> None:
    registry.manifests = {key: one for key, one in registry.manifests.items() if not key[1].endswith(".provenance")}


def test_equal_code_of_two_commits_is_one_image_and_the_commit_stands_beside_it(
    tmp_path: Path, registry: Registry, source: Path
) -> None:
    first = appended(job_for(tmp_path, registry, sha(1)), source)
    assert appended(job_for(tmp_path, registry, sha(2)), source) == first
    assert [one.name for one in first] == ["actor", "learner"]
    for one in first:
        image = Reference.parse(one.reference)
        manifest = json.loads(registry.manifests[image.repository, image.digest][0])
        config = registry.blobs[image.repository, manifest["config"]["digest"]]
        assert sha(1).encode() not in config
        notes = proofs(registry)[image.repository]["annotations"]
        assert notes["dev.rlctl.subject"] == one.reference
        assert notes["org.opencontainers.image.revision"] == sha(1)
        assert notes["org.opencontainers.image.source"] == str(tmp_path / "work")
        assert statement(registry, image.repository)["subject"][0]["name"] == one.reference


def test_provenance_that_a_kill_has_left_out_comes_with_the_next_attempt(
    tmp_path: Path, registry: Registry, source: Path
) -> None:
    appended(job_for(tmp_path, registry), source)
    without_proofs(registry)
    appended(job_for(tmp_path, registry), source)
    assert sorted(proofs(registry)) == ["team/rlctl-actor", "team/rlctl-learner"]
    registry.asked.clear()
    appended(job_for(tmp_path, registry), source)
    assert not [line for line in registry.asked if not line.startswith(("GET", "HEAD"))]


def test_an_image_of_the_same_code_that_a_person_has_pushed_stays_and_is_not_taken_for_ours(
    tmp_path: Path, registry: Registry, source: Path
) -> None:
    image = Reference.parse(appended(job_for(tmp_path, registry), source)[0].reference)
    (code,) = (name for name in names(registry, image.repository, image.digest) if name.startswith("ci-code-"))
    manifest, kind = registry.manifests[image.repository, image.digest]
    theirs = json.dumps(json.loads(manifest) | {"annotations": {"by": "docker"}}).encode()
    registry.manifests[image.repository, code.removeprefix("ci-")] = theirs, kind
    assert appended(job_for(tmp_path, registry, sha(2)), source)[0].reference == str(image)
    assert registry.manifests[image.repository, code.removeprefix("ci-")][0] == theirs


def names(registry: Registry, repository: str, digest: str) -> list[str]:
    """Tags of an image."""
    whole = registry.manifests[repository, digest]
    return sorted(
        name
        for (where, name), one in registry.manifests.items()
        if where == repository and one == whole and name != digest
    )


def test_an_image_is_found_by_commit_and_by_branch_and_stays_one_image(
    tmp_path: Path, registry: Registry, source: Path
) -> None:
    shas = ["1" * 40, "e" + "2" * 39]
    made = [appended(job_for(tmp_path, registry, one, "refs/heads/feat/x"), source) for one in shas]
    assert made[0] == made[1]
    image = Reference.parse(made[0][0].reference)
    found = names(registry, image.repository, image.digest)
    branch, code, *commits = found
    assert branch == f"branch-{slug('refs/heads/feat/x')}-1"
    assert code.startswith("ci-code-")
    assert commits == ["git-111111111111", "git-e22222222222"]


def test_an_image_that_goes_takes_its_tags_and_its_provenance_with_it(
    tmp_path: Path, registry: Registry, source: Path
) -> None:
    old = appended(job_for(tmp_path, registry, "1" * 40), source)
    (source / "lights.py").write_text("x = 2\n")
    new = appended(job_for(tmp_path, registry, "2" * 40), source)
    about = {"registry": f"{registry.name}/team", "plain_http": True, "target": "kubernetes", "secret_file": "/none"}
    config = Config.model_validate({"projects": {"pole": {**project(**about).model_dump(), **about}}})
    found = [UnusedArtifact("pole", one.reference, 1) for one in old]
    service = Service(tmp_path)
    assert service.hook(1)
    building = service.claim()
    assert building is not None
    service.queue.step(building.id, service.owner, "building")
    assert remove(config, service.reading, found, tmp_path, listed=0.0) == [], "it may find them there already"
    service.queue.step(building.id, service.owner, "pushing")
    service.queue.artifact(building.id, service.owner, old[:1])
    service.queue.end(building.id, service.owner, "succeeded")
    assert remove(config, service.reading, found[:1], tmp_path, listed=service.clock()) == [], "it has"
    service.clock.s += 10
    assert remove(config, service.reading, found, tmp_path, listed=service.clock()) == found
    for one in new:
        image = Reference.parse(one.reference)
        left = {name for where, name in registry.manifests if where == image.repository}
        kept = {name for name in left if not name.startswith("sha256:")}
        assert {name.partition("-")[0] for name in kept} == {"ci", "git", "branch"}
        assert len(kept) == 4, "the image, its provenance, its commit and its branch"
        assert "git-222222222222" in kept
        assert len(left - kept) == 2


@pytest.mark.slow
def test_a_branch_of_any_name_is_data_to_a_registry(tmp_path: Path, registry: Registry, source: Path) -> None:
    made = set()
    with watched() as did:
        for word in WORDS:
            ref = f"refs/heads/{word}"
            if fault(ref):
                continue
            without_proofs(registry)
            made.add(tuple(one.reference for one in appended(job_for(tmp_path, registry, ref=ref), source)))
            told = statement(registry, "team/rlctl-actor")["predicate"]["buildDefinition"]["externalParameters"]
            assert told["ref"] == ref
    assert len(made) == 1
    assert {event for event, _ in did} <= {"open", "socket.connect"}
    digest = "sha256:[0-9a-f]{64}"
    tag = r"ci-code-[0-9a-f]{12}(\.provenance)?|git-[0-9a-f]{12}|branch-[a-z0-9-]{1,40}-1"
    wanted = rf"[A-Z]+ /v2/(rlctl/|team/rlctl-)(actor|learner)/(blobs|manifests)/({digest}|{tag}|uploads/\S*)"
    assert not [line for line in registry.asked if not re.fullmatch(wanted, line)]


def test_only_the_registry_of_the_project_is_spoken_to_without_certificates(
    registry: Registry, elsewhere: Registry
) -> None:
    about = project(target="kubernetes", registry=f"{registry.name}/team", plain_http=True)
    asked = replace(registry_of(about), timeout_s=2.0)
    assert asked.manifest(registry.image("rlctl/actor", "1")) is not None
    with pytest.raises(BackendUnreachable):
        asked.manifest(elsewhere.image("rlctl/actor", "1"))
    assert elsewhere.asked == []
    wish = BuildOptions(about.registry, plain=plain(about))
    assert not wish.verifies(registry.name)
    assert wish.verifies("registry.example.org")
    built = wish.build(Reference(registry.name, "x"), Path(), Path(), None, {}, "registry.example.org")
    assert built.verify, "a base from elsewhere is pulled over HTTPS"
    assert plain(project(target="kubernetes", registry="registry.example.org/team")) is None


@pytest.mark.processes
@pytest.mark.parametrize("own", [True, False])
def test_docker_and_buildah_get_the_logins_that_the_service_finds_and_the_proxies(tmp_path: Path, own: bool) -> None:
    login = {"auth": "bWU6c2VjcmV0"}
    for name, place in ((".docker/config.json", "user.example.org"), ("own.json", "own.example.org")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"auths": {place: login}, "credsStore": "desktop"}))
    environ = {"PATH": "/bin:/usr/bin", "HOME": str(tmp_path), "HTTPS_PROXY": "http://proxy:3128", "KUBECONFIG": "/k"}
    fields: dict[str, Any] = {"registry_auth": tmp_path / "own.json"} if own else {}
    job, said = job_of(tmp_path, sha(1), **fields), list[str]()
    home = tmp_path / "home"
    Program("docker", home, environ=environ).run(job)(["env"], said.append)
    found = dict(line.split("=", 1) for line in said)
    assert (found["HOME"], found["HTTPS_PROXY"], "KUBECONFIG" in found) == (str(home), "http://proxy:3128", False)
    for file in (Path(found["REGISTRY_AUTH_FILE"]), Path(found["DOCKER_CONFIG"]) / "config.json"):
        assert json.loads(file.read_text()) == {"auths": {f"{'own' if own else 'user'}.example.org": login}}
        assert file.parent.stat().st_mode & 0o077 == 0
    assert job.folder in file.parents, "it goes with the build"


@pytest.mark.skipif(shutil.which("buildah") is None, reason="NOT TESTED: buildah is missing; apt-get install buildah")
def test_buildah_lays_the_code_over_a_base_and_pushes_it_once(
    tmp_path: Path, registry: Registry, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")
    monkeypatch.setenv("STORAGE_DRIVER", "vfs")
    maker, said = Program("buildah", tmp_path / "home"), list[str]()
    job = replace(job_for(tmp_path, registry, builder="buildah"), say=said.append)
    try:
        made = maker.push(job, maker.make(job, source))
        assert [one.name for one in made] == ["actor", "learner"], said
        for one in made:
            image = Reference.parse(one.reference)
            manifest = json.loads(registry.manifests[image.repository, image.digest][0])
            assert len(manifest["layers"]) == 2
            assert proofs(registry)[image.repository]["annotations"]["dev.rlctl.subject"] == one.reference
        later = job_for(tmp_path, registry, sha(2), builder="buildah")
        registry.asked.clear()
        assert [one.reference for one in maker.push(later, maker.make(later, source))] == [
            one.reference for one in made
        ]
        assert not [line for line in registry.asked if not line.startswith(("GET", "HEAD"))]
    finally:
        listed = subprocess.run(["buildah", "images", "--quiet", "--filter", f"reference={registry.name}/*/*"],
                                capture_output=True, text=True, check=False).stdout.split()  # fmt: skip
        subprocess.run(["buildah", "rmi", "--force", *listed], capture_output=True, check=False)
