"""`rlctl ci`: every verb against a service that listens on loopback, works, and acts upon a world in memory."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml

from rlctl.errors import BackendUnreachable
from rlctl_ci.config.settings import load
from rlctl_ci.core.cleaning import UnusedArtifact, remove
from rlctl_ci.core.service import Service
from rlctl_ci.core.states import TERMINAL
from rlctl_ci.web.app import make
from rlctl_ci.web.serve import local_token, server
from tests.ci.https_forge import certificate
from tests.ci.world import Outside, hands, hopeless, sha
from tests.cli.conftest import Rlctl, rlctl
from tests.end_to_end.conftest import wait_until

__all__ = ["rlctl"]

pytestmark = pytest.mark.processes


class Live:
    """A service at work, and its configuration."""

    def __init__(self, folder: Path, **fields: Any) -> None:
        self.outside = Outside(folder / "outside.jsonl")
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        (folder / "secret").write_text("a secret of sixteen or more\n")
        project = {
            "forge": "gitlab",
            "repository": "/srv/pole.git",
            "secret_file": "secret",
            "run": "pole",
            "poll_s": 0,
        }
        projects = {"pole": project, "lab": {**project, "forge": "github"}}
        content = {"listen": self.address, "projects": projects, **fields}
        self.config = folder / "ci.yaml"
        self.config.write_text(yaml.safe_dump(content))
        self.service = Service(load(self.config), lambda project, service: hands(self.outside))
        self.token = local_token(self.service)
        self._server = uvicorn.Server(
            uvicorn.Config(make(self.service), log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],), daemon=True)
        self.service.start()
        self._thread.start()
        wait_until(lambda: self._server.started, timeout_s=60, what="the server")

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        self.service.close()
        self._listening.close()

    def ended(self, build: int) -> str:
        wait_until(lambda: self.service.reading.build(build).state in TERMINAL, timeout_s=60, what=f"build {build}")
        return self.service.reading.build(build).state


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    found = Live(tmp_path)
    yield found
    found.close()


@pytest.fixture
def ci(rlctl: Rlctl, live: Live, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`ci(VERB, ...)` runs `rlctl ci VERB` against it, with all rights."""
    monkeypatch.chdir(live.config.parent)
    rlctl.environ |= {"RLCTL_CI_URL": f"http://{live.address}", "RLCTL_CI_TOKEN_FILE": str(live.token)}
    rlctl.sleep = time.sleep  # type: ignore[method-assign]  # what is waited for happens elsewhere
    rlctl.now = lambda: datetime.now(UTC)  # type: ignore[method-assign]
    return lambda *arguments: rlctl("ci", *arguments)


def pushed(ci: Any, live: Live, number: int, project: str = "pole") -> int:
    """A push by `test-hook`; its build."""
    live.outside.push(sha(number))
    done = ci("test-hook", project, "--sha", sha(number), "-o", "json")
    assert done.code == 0, done.err
    return int(json.loads(done.json["answer"])["build_id"])


def test_a_hook_by_hand_becomes_a_build_that_is_listed(ci: Any, live: Live) -> None:
    assert "test-hook" in ci("builds").err
    build = pushed(ci, live, 1)
    assert live.ended(build) == "succeeded"
    rows = ci("builds").out.splitlines()
    assert rows[0].split()[:3] == ["BUILD", "STATE", "PROJECT"]
    assert rows[1].split()[:5] == [str(build), "succeeded", "pole", "main", sha(1)[:12]]
    assert ci("builds", "--project", "lab").out == ""
    assert ci("builds", "-o", "json").json["builds"][0]["sha"] == sha(1)


def test_a_hook_by_hand_goes_where_the_environment_says(ci: Any, live: Live) -> None:
    told = yaml.safe_load(live.config.read_text())
    live.config.write_text(yaml.safe_dump({**told, "listen": "127.0.0.1:1"}))
    assert live.ended(pushed(ci, live, 1)) == "succeeded"


def test_a_hook_by_hand_says_a_name_of_the_service_that_listens_everywhere(
    rlctl: Rlctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(tmp_path, hosts=["ci.example.org"])
    try:
        monkeypatch.chdir(tmp_path)
        told = yaml.safe_load(live.config.read_text())
        port = live.address.partition(":")[2]
        live.config.write_text(yaml.safe_dump({**told, "listen": f"0.0.0.0:{port}"}))
        rlctl.now = lambda: datetime.now(UTC)  # type: ignore[method-assign]
        assert rlctl("ci", "test-hook", "pole", "--sha", sha(1)).out.startswith("202 ")
    finally:
        live.close()


def test_a_hook_by_hand_speaks_tls_to_a_service_that_does_by_the_name_of_its_certificate(
    rlctl: Rlctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in zip(("cert.pem", "key.pem"), certificate("localhost"), strict=True):
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    (tmp_path / "secret").write_text("a secret of sixteen or more\n")
    project = {"forge": "gitlab", "repository": "/srv/pole.git", "secret_file": "secret", "run": "pole"}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        about = {"listen": f"0.0.0.0:{port}", "hosts": [f"localhost:{port}"], "state": "state"}
        content = {**about, "tls_cert": "cert.pem", "tls_key": "key.pem", "projects": {"pole": project}}
        (tmp_path / "ci.yaml").write_text(yaml.safe_dump(content))
        service = Service(load(tmp_path / "ci.yaml"), lambda project, service: {})
        serving = server(service)
        thread = threading.Thread(target=serving.run, args=([listening],), daemon=True)
        thread.start()
        wait_until(lambda: serving.started, timeout_s=60, what="the server")
        rlctl.now = lambda: datetime.now(UTC)  # type: ignore[method-assign]
        done = rlctl("ci", "test-hook", "pole", "--sha", sha(1))
        serving.should_exit = True
        thread.join(60)
        service.close()
    assert done.out.startswith("202 "), done.err


def test_a_token_that_is_of_another_service_reads_what_anybody_may_and_is_named(
    ci: Any, live: Live, tmp_path: Path
) -> None:
    (tmp_path / "stale").write_text("rlctl_ci_of_another_service")
    assert ci("builds", "--token-file", str(tmp_path / "stale")).code == 0
    refused = ci("pause", "pole", "--token-file", str(tmp_path / "stale"))
    assert refused.code == 4
    assert f"this token is not known, or no longer valid (of {tmp_path / 'stale'})" in refused.err


def test_a_hook_by_hand_for_a_project_or_commit_that_is_none_says_so(ci: Any) -> None:
    unknown = ci("test-hook", "nobody", "--sha", sha(1))
    assert unknown.code == 2
    assert "lab, pole" in unknown.err
    wrong = ci("test-hook", "pole", "--sha", "abc")
    assert wrong.code == 1
    assert "400" in wrong.err


def test_a_log_is_printed_and_a_failed_build_followed_ends_with_7(ci: Any, live: Live) -> None:
    live.outside.faults["make"] = [hopeless("build")]
    build = pushed(ci, live, 1)
    followed = ci("log", str(build), "-f")
    assert followed.code == 7
    assert f"attempt 1: pole main {sha(1)}" in followed.out
    assert f"rlctl ci retry {build}" in followed.err
    again = ci("log", str(build), "-o", "json").json
    assert again["state"] == "failed"
    assert again["log"].startswith(followed.out)


def test_a_build_that_is_over_can_be_built_again_but_not_cancelled(ci: Any, live: Live) -> None:
    live.outside.faults["make"] = [hopeless("build")]
    build = pushed(ci, live, 1)
    assert live.ended(build) == "failed"
    refused = ci("cancel", str(build))
    assert refused.code == 5
    assert "is over: failed" in refused.err
    again = ci("retry", str(build), "-o", "json").json
    assert again["retry_of"] == build
    assert live.ended(again["build_id"]) == "succeeded"


def test_a_paused_project_waits_and_goes_on(ci: Any, live: Live) -> None:
    assert ci("pause", "pole").code == 0
    build = pushed(ci, live, 1)
    other = pushed(ci, live, 1, "lab")
    assert live.ended(other) == "succeeded", "another project is not paused"
    assert live.service.reading.build(build).state in ("received", "queued")
    assert "not over" in ci("retry", str(build)).err
    assert ci("resume", "pole").code == 0
    assert live.ended(build) == "succeeded"
    assert ci("pause", "nobody").code == 2


def test_a_build_that_waits_is_cancelled_at_once(ci: Any, live: Live) -> None:
    ci("pause", "pole")
    build = pushed(ci, live, 1)
    done = ci("cancel", str(build))
    assert done.code == 0
    assert f"build {build}: cancelled" in done.err
    ci("resume", "pole")
    assert live.service.reading.build(build).state == "cancelled"
    assert not live.outside.said("revision")


def test_a_branch_whose_commit_was_rolled_back_is_pinned_until_it_is_resumed(ci: Any, live: Live) -> None:
    assert live.ended(pushed(ci, live, 1)) == "succeeded"
    live.outside.bad = {sha(2)}
    bad = pushed(ci, live, 2)
    assert live.ended(bad) == "rolled_back"
    assert live.outside.history[-1] == sha(1)
    live.outside.bad = set()
    assert "1 pauses and pins lifted" in ci("resume", "pole").err
    freed = ci("retry", str(bad), "-o", "json").json["build_id"]
    assert live.ended(freed) == "succeeded"


def test_a_deployment_is_gone_back_from_by_a_verb_and_its_branch_is_pinned(ci: Any, live: Live) -> None:
    assert "no deployment to go back from" in ci("rollback", "pole").err
    for number in (1, 2):
        build = pushed(ci, live, number)
        assert live.ended(build) == "succeeded"
    done = ci("rollback", "pole")
    assert done.code == 0, done.err
    assert f"what build {build} deployed is pinned" in done.err
    assert live.outside.history[-1] == sha(1)
    assert "1 pauses and pins lifted" in ci("resume", "pole").err


def test_a_token_opens_what_its_scope_says_until_it_is_revoked(ci: Any, live: Live, tmp_path: Path) -> None:
    made = ci("token", "ben", "--scope", "trigger", "--valid", "90d")
    assert made.code == 0
    (tmp_path / "ben").write_text(made.out)
    mine = ("--token-file", str(tmp_path / "ben"))
    build = pushed(ci, live, 1)
    live.ended(build)
    assert ci("retry", str(build), *mine).code == 0
    refused = ci("pause", "pole", *mine)
    assert refused.code == 4
    assert "refuses" in refused.err
    assert ci("token", "ben", "--revoke").code == 0
    assert ci("retry", str(build), *mine).code == 4
    assert ci("token", "ben", "--revoke").code == 2
    assert ci("token", "ben", "--scope", "root").code == 1
    assert ci("token", "ben", "--valid", "soon").code == 2
    assert ci("builds", "--token-file", str(tmp_path / "none")).code == 2


def test_clean_lists_what_no_run_needs_and_removes_it_when_told(
    ci: Any, live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlctl_ci.core.cleaning.asked", lambda *_: [])
    code = live.service.folder / "code"
    code.mkdir()
    for number in (1, 2):
        folder = code / sha(number)
        folder.mkdir()
        folder.with_name(f"{sha(number)}.provenance.json").write_text("{}")
        monkeypatch.setattr(live.outside, "push_", lambda job, made: [made_artifact(code, job.build.sha)], raising=True)
        assert live.ended(pushed(ci, live, number)) == "succeeded"
    assert "0 could go, and 0 builds" in ci("clean").err, "young builds keep what they made"
    listed = ci("clean", "--keep", "1", "--days", "0")
    assert [line.split()[-1] for line in listed.out.splitlines()] == [str(code / sha(1))]
    assert "1 could go, and 1 builds" in listed.err
    assert (code / sha(1)).is_dir(), "nothing goes without --yes"
    assert live.service.log(1).exists()
    copy = live.service.folder / "git" / "left-0-source.git"
    copy.mkdir(parents=True)
    assert ci("clean").out.split()[-1] == str(copy)
    again = [UnusedArtifact("pole", str(code / sha(1)), 0)]
    assert remove(live.service.config, live.service.reading, again, code, listed=0.0) == [], (
        "a build has made it again since it was listed"
    )
    assert (code / sha(1)).is_dir()
    done = ci("clean", "--keep", "1", "--days", "0", "--yes", "-o", "json").json
    assert (done["removed"], done["builds"], done["log_bytes"] > 0) == (2, [1], True)
    assert not copy.exists()
    assert not (code / sha(1)).exists()
    assert (code / sha(2)).is_dir()
    assert [live.service.log(number).exists() for number in (1, 2)] == [False, True]
    assert [build["id"] for build in ci("builds", "-o", "json").json["builds"]] == [2]


def test_clean_names_the_clusters_that_it_has_to_ask_and_leaves_out_those_that_are_gone(
    ci: Any, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(config: Any, reading: Any, gone: Any) -> list[Any]:
        if ("old", "team") in gone:
            return []
        raise BackendUnreachable("it does not answer")

    monkeypatch.setattr("rlctl_ci.core.cleaning.asked", asked)
    with live.service.database.write() as db:
        db.execute("INSERT INTO targets VALUES ('old', 'team')")
    assert "--gone with one of old/team" in ci("clean").err
    assert ci("clean", "--gone", "old/team").code == 0
    assert ci("clean", "--gone", "else/team").code == 2


def test_who_has_asked_for_what_is_listed(ci: Any) -> None:
    assert ci("audit").out == ""
    for verb in ("pause", "resume"):
        assert ci(verb, "pole").code == 0
    rows = [row.split()[2:] for row in ci("audit", "--utc").out.splitlines()]
    assert rows == [["ACTION", "OBJECT"], ["local", "resume", "pole"], ["local", "pause", "pole"]]
    assert [one["action"] for one in ci("audit", "--limit", "1", "-o", "json").json["audit"]] == ["resume"]


def made_artifact(code: Path, commit: str) -> Any:
    from rlctl_ci.store.records import Artifact

    return Artifact("code", str(code / commit), bytes=10)


def test_a_service_that_is_not_there_is_said_to_be_so(rlctl: Rlctl, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
    for verb in (("builds",), ("log", "1"), ("cancel", "1"), ("retry", "1"), ("pause", "p"), ("resume", "p")):
        done = rlctl("ci", *verb, "--url", f"http://127.0.0.1:{free}")
        assert done.code == 4, verb
        assert "no service answers" in done.err
        assert "Traceback" not in done.err
    assert rlctl("ci", "builds", "--url", "ftp://x").code == 2


@pytest.mark.parametrize("verb", [("token", "ben"), ("audit",), ("clean",)])
def test_a_verb_makes_no_database_beside_that_of_the_service(
    ci: Any, live: Live, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    told = yaml.safe_load(live.config.read_text())
    live.config.write_text(yaml.safe_dump({**told, "state": "elsewhere"}))
    refused = ci(*verb)
    assert (refused.code, refused.out) == (2, "")
    assert f"{tmp_path / 'elsewhere'} has no database of a service, as user " in refused.err
    assert not (tmp_path / "elsewhere").exists()


def test_serve_check_reads_everything_and_ends(rlctl: Rlctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text("a secret of sixteen or more\n")
    project = {"forge": "github", "repository": "/srv/pole.git", "secret_file": "secret", "run": "pole"}
    (tmp_path / "ci.yaml").write_text(yaml.safe_dump({"projects": {"pole": project}}))
    done = rlctl("ci", "serve", "--check")
    assert done.code == 0
    assert "POST /hooks/github/pole -> pole (local, append)" in done.err
    (tmp_path / "ci.yaml").write_text(yaml.safe_dump({"projects": {"pole": {**project, "branches": ["a..b"]}}}))
    refused = rlctl("ci", "serve", "--check")
    assert refused.code == 3
    assert "a..b" in refused.err
