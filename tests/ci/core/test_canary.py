"""Every secret of a service is a canary; a build tells all that it sees, and none of them is found anywhere."""

from __future__ import annotations

import base64
import html
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from starlette.testclient import TestClient

from rlctl_ci.builders.append import Append
from rlctl_ci.builders.program import Program
from rlctl_ci.config.settings import Config
from rlctl_ci.core.build_attempt import Adapters, Live
from rlctl_ci.core.errors import BuildStopped
from rlctl_ci.core.logs import MASK, Masker
from rlctl_ci.core.service import Service
from rlctl_ci.forges.find import FORGES
from rlctl_ci.git.repository import Git
from rlctl_ci.store.records import Push
from rlctl_ci.web.app import make
from tests.ci.git.test_repository import Repository
from tests.ci.oci import Registry, registry
from tests.ci.world import MAIN

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
__all__ = ["registry"]

ODD = 'c4n4ry/{}+"qu\\ote" ü&<%>=~'
SECRETS = {name: ODD.format(name) for name in ("hook", "hook2", "git", "password", "key")}
IN_OUR_ENVIRONMENT = {
    name: f"c4n4ry-{name.lower()}-7d1f"
    for name in (
        "AWS_SECRET_ACCESS_KEY", "AZURE_CLIENT_SECRET", "GOOGLE_OAUTH_ACCESS_TOKEN", "KUBE_TOKEN", "KUBECONFIG",
        "RLCTL_CI_TOKEN", "RLCTL_CI_TOKEN_FILE", "DOCKER_AUTH_CONFIG", "SSH_AUTH_SOCK",
    )
}  # fmt: skip
TELL = """
import base64, json, os, pathlib, sys, urllib.parse

def show(what, text):
    for one in (text, json.dumps(text), urllib.parse.quote(text, safe=""), urllib.parse.quote_plus(text)):
        print(what, one)
    for before in ("", "x", "xx"):
        packed = (before + text + "xyz").encode()
        print(what, base64.b64encode(packed).decode(), base64.urlsafe_b64encode(packed).decode())

fds = {}
for fd in os.listdir("/proc/self/fd"):
    try:
        fds[fd] = os.readlink("/proc/self/fd/" + fd)
    except OSError:
        pass  # that of the list itself
with open(os.path.join(@folder@, "told"), "a") as file:
    file.write(json.dumps({"argv": sys.argv, "environ": dict(os.environ), "fds": fds}) + "\\n")
for pid in ("self", str(os.getppid())):
    for name in ("environ", "cmdline"):
        show(name, pathlib.Path("/proc", pid, name).read_text())
for key, value in os.environ.items():
    show(key, value)
    if key == "REGISTRY_AUTH_FILE":
        text = pathlib.Path(value).read_text()
        show(key, text)
        for one in json.loads(text)["auths"].values():
            login = base64.b64decode(one["auth"]).decode()
            show("login", login)
            show("password", login.partition(":")[2])
for folder in (os.getcwd(), os.environ["HOME"]):
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file() and path.stat().st_size < 100000:
            show(str(path), path.read_bytes().decode("utf-8", "replace"))
if "build" in sys.argv:
    pathlib.Path(sys.argv[sys.argv.index("--iidfile") + 1]).write_text("sha256:" + "c" * 64)
elif "push" in sys.argv:
    pathlib.Path(sys.argv[sys.argv.index("--digestfile") + 1]).write_text(@digest@)
else:
    sys.exit(1)
"""
"""A builder that tells whatever it sees, in every form that we know."""


def forms(secret: str) -> set[str]:
    """Forms that a secret may have where it was packed."""
    found = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    found |= {quote(secret, safe=""), quote(secret), quote_plus(secret)}
    for before in ("", "x", "xx"):
        packed = base64.b64encode((before + secret).encode()).decode()
        inner = packed[4 if before else 0 : len(packed) - 4]
        found |= {inner, inner.replace("+", "-").replace("/", "_")}
    return found


def leaked(text: str, secrets: Mapping[str, str]) -> list[str]:
    return [
        f"{name}: {form}"
        for name, secret in secrets.items()
        for form in forms(secret)
        if form in text or html.escape(form) in text
    ]


class Deployer:
    """Refuses, and tells why in words that hold every secret."""

    def look(self, job: Any) -> Live:
        return Live(1, {})

    def apply(self, job: Any, deploy: Any, source: Path, artifacts: Any) -> int:
        said = "; ".join(sorted(form for secret in SECRETS.values() for form in forms(secret)))
        raise BuildStopped("no", f"it says {said}", hint=SECRETS["password"])


@pytest.fixture(params=["append", "buildah"])
def service(
    request: pytest.FixtureRequest, tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    repository = Repository(tmp_path)
    base = registry.image("rlctl/actor", "1")
    for name in ("actor", "learner"):
        digest = registry.image(f"team/rlctl-{name}", "pushed").digest
    images = f"images: {{actor: {base}, learner: {base}}}\n"
    repository.commit("spec.yaml", (repository.folder / "spec.yaml").read_text() + images)
    kept = tmp_path / "secrets"
    kept.mkdir()
    (kept / "hook").write_text(f"{SECRETS['hook']}\n{SECRETS['hook2']}\n")
    (kept / "git").write_text(SECRETS["git"])
    (kept / "key").write_text(SECRETS["key"])
    login = base64.b64encode(f"me:{SECRETS['password']}".encode()).decode()
    (kept / "auth.json").write_text(json.dumps({"auths": {registry.name: {"auth": login}}}))
    for name, value in IN_OUR_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    programs = tmp_path / "programs"
    programs.mkdir()
    text = TELL.replace("@folder@", repr(str(tmp_path))).replace("@digest@", repr(digest))
    (programs / "tell.py").write_text(text)
    (programs / "buildah").write_text(f'#!/bin/sh\nexec {sys.executable} {programs}/tell.py "$@"\n')
    (programs / "buildah").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    project = {
        "forge": "github", "repository": str(repository.folder), "secret_file": kept / "hook", "run": "pole",
        "target": "kubernetes", "builder": request.param, "registry": f"{registry.name}/team", "plain_http": True,
        "bases": [f"{registry.name}/rlctl"], "registry_auth": kept / "auth.json", "git_token_file": kept / "git",
        "git_key_file": kept / "key",
    }  # fmt: skip
    registry.locked = True

    def hands(project: Any, service: Service) -> Adapters:
        maker = Append() if project.builder == "append" else Program("buildah", service.folder / "buildah")
        return Adapters(Git(project, service.folder / "git"), maker, Deployer())  # type: ignore[arg-type]  # it gets no further

    found = Service(Config.model_validate({"state": tmp_path / "state", "projects": {"pole": project}}), hands)
    yield found
    found.close()


def test_a_build_that_tells_all_that_it_sees_gives_no_secret_away(
    service: Service, tmp_path: Path, registry: Registry
) -> None:
    http = TestClient(make(service), base_url="http://127.0.0.1:8710", client=("127.0.0.1", 1))
    canaries = {**SECRETS, **IN_OUR_ENVIRONMENT, "token": service.people.issue("local", ["admin"])}
    forge, push = FORGES["github"], Push(MAIN, _head(tmp_path), "ana", "faster")
    raw = json.dumps(forge.example(push)).encode()
    signed = dict(forge.sign(raw, SECRETS["hook"].encode(), delivery="1", now=0))
    assert http.post("/hooks/github/pole", content=raw, headers=signed).status_code == 202
    assert service.one()
    build = service.reading.build(1)
    log = service.log(1).read_text()
    assert build.reason.startswith("it says ***"), log

    answers = {
        path: http.get(path, headers={"authorization": f"Bearer {canaries['token']}"}).text
        for path in (
            "/", "/index.json", "/builds/1", "/builds/1.json", "/feed.atom", "/metrics", "/badge/pole.svg",
            "/api/v1/projects", "/api/v1/builds", "/api/v1/builds/1", "/api/v1/deploys", "/api/v1/builds/1/log",
        )
    }  # fmt: skip
    stored = {str(path): path.read_bytes().decode("utf-8", "replace") for path in (tmp_path / "state").rglob("*")
              if path.is_file()}  # fmt: skip
    pushed = {f"{where}": content.decode("utf-8", "replace") for where, content in registry.blobs.items()}
    pushed |= {f"{where}": content.decode("utf-8", "replace") for where, (content, _) in registry.manifests.items()}
    pushed["asked"] = "\n".join(registry.asked)
    assert any(where.endswith("ci.db") for where in stored)
    assert any("provenance" in where for where in pushed)
    for where, text in {**answers, **stored, **pushed, "log": log}.items():
        assert not leaked(text, canaries), where

    told = [json.loads(line) for line in _lines(tmp_path / "told")]
    assert bool(told) == (service.config.projects["pole"].builder == "buildah")
    for one in told:
        assert not leaked(json.dumps(one, ensure_ascii=False), canaries), "by arguments or environment"
        assert not [name for name in one["fds"].values() if "/state/" in name or "socket:" in name]
    if told:
        assert log.count(MASK) > 20, "what it was given by file, it has told"


@pytest.mark.parametrize("name", SECRETS)
def test_every_form_of_a_secret_is_hidden(name: str) -> None:
    mask = Masker([SECRETS[name].encode()])
    for form in forms(SECRETS[name]):
        assert not leaked(mask(f"before {form} after"), {name: SECRETS[name]}), form


def _head(tmp_path: Path) -> str:
    return (tmp_path / "work" / ".git" / "refs" / "heads" / "main").read_text().strip()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
