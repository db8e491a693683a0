"""ci.yaml: what is wrong with it is said all at once, with its place; and what is checked leaves no trace."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlctl.errors import SpecError
from rlctl_ci.config.settings import Config, load
from tests.ci.https_forge import certificate
from tests.cli.conftest import Rlctl, rlctl

__all__ = ["rlctl"]
PROJECT = {"forge": "github", "repository": "/srv/pole.git", "secret_file": "secret", "run": "pole"}
WRONG = """\
listen: 8710
builds: many
stat: /srv
tls_cert: cert.pem
projects:
  Pole:
    forge: githb
    repository: /srv/x
    secret: hush
    run: pole
    branches: main
    target: kubernetes
    limits: {time: 3}
    platform: amd64
  two: {forge: gitea, repository: /srv/x, secret_file: short, run: two, registry_auth: login, plain_http: true}
"""
SAID = """\
1:1: listen: must be text, got 8710; put it in quotes: '8710'
1:1: tls_key: is missing: `tls_cert` needs its key
2:1: builds: must be a whole number, got 'many'
3:1: stat: unknown key; did you mean `state`?
4:1: tls_cert: {}/cert.pem: no such file or directory
6:3: projects.Pole: the name must be at most 40 of a-z, 0-9 and -, with no - at the ends, got 'Pole'
6:3: projects.Pole.registry: is missing: on a cluster the images need a place, as in ghcr.io/team
6:3: projects.Pole.secret_file: is missing
7:5: projects.Pole.forge: must be github, gitlab, gitea or standard, got 'githb'; did you mean `github`?
9:5: projects.Pole.secret: unknown key; did you mean `secret_file`?
11:5: projects.Pole.branches: must be a list; write [main]
13:14: projects.Pole.limits.time: unknown key; did you mean `time_s`?
14:5: projects.Pole.platform: must be a system and a processor, as in linux/amd64, got 'amd64'
15:43: projects.two.secret_file: {}/short: needs secrets of at least 16 characters
15:73: projects.two.registry_auth: {}/login: no such file or directory
15:95: projects.two.plain_http: only for a registry on loopback, as in 127.0.0.1:5000
"""


def written(folder: Path, project: dict[str, Any] | None = None, **fields: Any) -> Path:
    (folder / "secret").write_text("a secret of sixteen or more\n")
    content = {"state": "state", **fields, "projects": {"pole": {**PROJECT, **(project or {})}}}
    path = folder / "ci.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_every_fault_is_said_at_once_with_its_line_and_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("short\n")
    path = tmp_path / "ci.yaml"
    path.write_text(WRONG)
    with pytest.raises(SpecError) as refused:
        load(path, files=True)
    said = [str(one).removeprefix(f"{path}:") for one in refused.value.problems]
    assert said == SAID.replace("{}", str(tmp_path)).splitlines()


@pytest.mark.parametrize("user", ["ghp_0123456789", "ana:ghp_0123456789"])
def test_a_token_in_the_address_of_a_repository_is_refused_and_not_repeated(tmp_path: Path, user: str) -> None:
    with pytest.raises(SpecError) as refused:
        load(written(tmp_path, {"repository": f"https://{user}@git.example.org/team/pole.git"}))
    (problem,) = refused.value.problems
    assert "`git_user` and `git_token_file`" in problem.message
    assert "ghp_" not in str(problem)


def test_what_is_no_yaml_is_said_beside_what_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "ci.yaml"
    path.write_text("builds: *two\nlisten: x\n")
    with pytest.raises(SpecError) as refused:
        load(path)
    assert [(one.line, one.path) for one in refused.value.problems] == [(1, "projects"), (1, "builds"), (2, "listen")]
    path.write_text("")
    with pytest.raises(SpecError, match="1 problem"):
        load(path)
    with pytest.raises(SpecError) as missing:
        load(tmp_path / "other.yaml")
    assert "no such file" in missing.value.problems[0].message


@pytest.mark.parametrize("key", ["secret_file", "registry_auth", "git_token_file", "git_key_file", "git_known_hosts"])
def test_a_file_that_is_missing_is_a_fault_where_the_service_runs_alone(tmp_path: Path, key: str) -> None:
    path = written(tmp_path, {key: "elsewhere"})
    assert getattr(load(path).projects["pole"], key) == tmp_path / "elsewhere"
    with pytest.raises(SpecError) as refused:
        load(path, files=True)
    assert [one.path for one in refused.value.problems] == [f"projects.pole.{key}"]
    assert refused.value.problems[0].line > 1


def test_a_certificate_needs_its_own_key(tmp_path: Path) -> None:
    pairs = [certificate("ci.example.org") for _ in range(2)]
    for name, text in zip(("cert.pem", "key.pem", "other.pem"), (*pairs[0], pairs[1][1]), strict=True):
        (tmp_path / name).write_text(text)
    assert load(written(tmp_path, tls_cert="cert.pem", tls_key="key.pem"), files=True).tls_key == tmp_path / "key.pem"
    for wrong, at in (({"tls_key": "other.pem"}, "tls_cert"), ({}, "tls_key")):
        with pytest.raises(SpecError) as refused:
            load(written(tmp_path, tls_cert="cert.pem", **wrong), files=True)
        assert [one.path for one in refused.value.problems] == [at]
    with pytest.raises(SpecError):
        load(written(tmp_path, tls_key="key.pem"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["10.42.0.0/16", "::1", "192.0.2.7"], ""),
        (["ingress"], "'ingress' is no address and no network, as in 10.42.0.0/16"),
        (["10.42.0.1/16"], "'10.42.0.1/16' is no address and no network"),
        (["0.0.0.0/0"], "0.0.0.0/0 is every address"),
        (["::/0"], "::/0 is every address"),
    ],
)
def test_a_proxy_that_is_believed_is_an_address_or_a_network_and_not_everybody(
    tmp_path: Path, given: list[str], said: str
) -> None:
    path = written(tmp_path, proxies=given)
    if not said:
        assert load(path).proxies == given
        return
    with pytest.raises(SpecError) as refused:
        load(path)
    (problem,) = refused.value.problems
    assert (problem.path, said in problem.message) == ("proxies", True), problem


@pytest.mark.parametrize("name", ["~nobody-of-that-name/secret", "nul\0secret"])
def test_a_name_that_no_file_has_is_a_fault_like_any_other(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError) as refused:
        load(written(tmp_path, {"secret_file": name}), files=True)
    assert [one.path for one in refused.value.problems] == ["projects.pole.secret_file"]


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "ci.yaml").write_text("# soon\n")
    with pytest.raises(SpecError) as refused:
        load(tmp_path / "ci.yaml")
    assert [str(one) for one in refused.value.problems] == [f"{tmp_path}/ci.yaml: is empty; it has at least `projects`"]


def test_a_check_makes_nothing_and_disturbs_no_service_that_runs(
    rlctl: Rlctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert rlctl("ci", "serve", "--check").code == 0
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "state").mkdir()
    with (tmp_path / "state" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert rlctl("ci", "serve", "--check").code == 0
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["lock"]


def test_a_check_says_which_file_is_missing_in_which_line(
    rlctl: Rlctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, {"git_token_file": "token"})
    refused = rlctl("ci", "serve", "--check")
    assert refused.code == 3
    assert "ci.yaml:4:5: projects.pole.git_token_file: " in refused.err
    (tmp_path / "secret").unlink()
    assert "token_urlsafe" in rlctl("ci", "serve", "--check").err


@pytest.mark.parametrize(
    ("fields", "url", "host"),
    [
        ({}, "http://127.0.0.1:8710", ""),
        ({"hosts": ["ci"]}, "http://127.0.0.1:8710", ""),
        ({"listen": "0.0.0.0:80", "hosts": ["ci", "b"], "behind_tls": True}, "http://127.0.0.1:80", "ci"),
        ({"listen": "[::]:80", "hosts": ["ci"]}, "http://[::1]:80", "ci"),
        ({"listen": "10.0.0.5:80", "hosts": ["ci"]}, "http://10.0.0.5:80", ""),
        ({"listen": "0.0.0.0:443", "hosts": ["ci:443"], "tls_cert": "c", "tls_key": "k"}, "https://ci:443", ""),
        ({"tls_cert": "c", "tls_key": "k"}, "https://127.0.0.1:8710", ""),
    ],
)
def test_a_program_on_the_same_machine_knows_where_it_listens(fields: dict[str, Any], url: str, host: str) -> None:
    about = Config.model_validate({**fields, "projects": {"pole": PROJECT}})
    assert about.here == (url, host)


@pytest.mark.parametrize(
    ("more", "warned"),
    [
        ({}, True),
        ({"repository": "/srv/pole.git"}, False),  # the same people
        ({"target": "kubernetes", "registry": "r.example.org/team"}, True),  # pole's code reaches its secret
    ],
)
def test_projects_of_several_repositories_under_one_user_are_warned_of(
    rlctl: Rlctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], warned: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    two = {**PROJECT, "repository": "/srv/other.git", "run": "two", **more}
    (tmp_path / "secret").write_text("a secret of sixteen or more\n")
    (tmp_path / "ci.yaml").write_text(yaml.safe_dump({"projects": {"pole": PROJECT, "two": two}}))
    done = rlctl("ci", "serve", "--check")
    assert done.code == 0, done.err
    assert ("warning: code that is pushed to pole" in done.err) is warned


def test_nothing_is_warned_of_where_no_code_of_a_commit_runs_as_the_service(tmp_path: Path) -> None:
    away = {"target": "kubernetes", "registry": "r.example.org/team"}
    path = written(tmp_path, away)
    content = yaml.safe_load(path.read_text())
    content["projects"]["two"] = {**PROJECT, **away, "repository": "/srv/other.git", "run": "two"}
    path.write_text(yaml.safe_dump(content))
    assert load(path).sharing == ""
    content["projects"]["two"]["builder"] = "buildah"  # its steps run here
    path.write_text(yaml.safe_dump(content))
    assert "pushed to two runs as this user" in load(path).sharing


@pytest.mark.parametrize("registry", ["127.0.0.1:5000/", "ghcr.io/Team", "https://ghcr.io/team", ""])
def test_a_registry_that_is_no_place_for_images_is_refused(registry: str) -> None:
    with pytest.raises(ValueError, match=r"registry\n.*must be host"):
        Config.model_validate({"projects": {"pole": {**PROJECT, "registry": registry}}})


@pytest.mark.parametrize(
    ("registry", "near"),
    [
        ("127.0.0.1:5000/team", True), ("localhost:5000", True), ("127.0.0.2:5000", True),
        ("localhost/team", False), ("r.example.org:5000", False), ("10.0.0.1:5000", False), (None, False),
    ],
)  # fmt: skip
def test_only_a_registry_on_this_machine_may_speak_plain_http(registry: str | None, near: bool) -> None:
    fields = {**PROJECT, "registry": registry, "plain_http": True}
    if near:
        assert Config.model_validate({"projects": {"pole": fields}}).projects["pole"].plain_http
    else:
        with pytest.raises(ValueError, match="only for a registry on loopback"):
            Config.model_validate({"projects": {"pole": fields}})
