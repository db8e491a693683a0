"""ci.yaml: repositories whose pushes are built, and what a push to each of them may do. Only its owner writes it."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import ssl
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from rlctl.errors import Problem, SpecError
from rlctl.image_names import LOCAL, Reference, loopback, registry_of_folder
from rlctl.images.ignore import Ignore
from rlctl.spec import yaml
from rlctl.spec.layout import state_home
from rlctl.spec.schema import RUN_NAME
from rlctl.spec.words import Path as Keys
from rlctl.spec.yaml import Location, Tree, located
from rlctl_ci.config import faults
from rlctl_ci.git.refs import fault

PROJECT_NAME: Final = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
MIN_SECRET: Final = 16
RECIPE: Final = 1
"""Version of the recipe: increased when the same commit and configuration would be built into something else."""

Forge = Literal["github", "gitlab", "gitea", "standard"]


class ConfigModel(BaseModel):
    """Base of the configuration: frozen, unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Limits(ConfigModel):
    """Limits of one build."""

    time_s: Annotated[float, Field(gt=0, le=86_400)] = 1800.0
    memory_mib: Annotated[int, Field(ge=64, le=1 << 20)] = 8192
    """Address space of each process of `buildah`, and of git where the repository is a folder."""
    git_memory_mib: Annotated[int, Field(ge=64, le=1 << 20)] = 1024
    """Address space of each process of git."""
    log_mib: Annotated[int, Field(ge=1, le=1024)] = 16
    source_mib: Annotated[int, Field(ge=1, le=65_536)] = 512
    """Size of the commit, packed and unpacked."""


class Verify(ConfigModel):
    """Terms on which a deployment counts as verified."""

    ready_within_s: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    """Seconds within which every replica runs and has reported; 0.1 more for each replica."""
    watch_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """Seconds for which the run is watched from then on."""
    min_throughput: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the agent steps per second that the learner consumed before, at least; 0: not checked."""


class Project(ConfigModel):
    """One repository, and the run that its pushes go to."""

    forge: Forge
    repository: Annotated[str, Field(min_length=1, max_length=500)]
    """The only place that is fetched from: https://, ssh://, or an absolute folder on this machine."""
    secret_file: Path
    """Secret of the webhook; several lines are several secrets, all of them valid, so that one can be replaced."""
    branches: Annotated[list[str], Field(min_length=1)] = ["main"]
    """Names, no patterns: what is pushed to one of them can run code as the roles do."""
    paths: list[str] = []
    """Patterns, as in `agents/**`: a commit is built only where one of their files differs from the commit of the
    branch that the run was given last; always, where that is not known or the list is empty."""
    spec: Annotated[str, Field(min_length=1)] = "spec.yaml"
    """Path of the spec in the repository."""
    sets: list[str] = []
    """Overrides, as by --set of `rlctl up`; a push cannot change what is set here."""
    run: Annotated[str, Field(pattern=RUN_NAME)]
    """The only run that this project may change, whatever its spec says."""
    target: Literal["local", "kubernetes"] = "local"
    context: str | None = None
    namespace: str | None = None
    builder: Literal["append", "buildah", "docker", "none"] = "append"
    """append: one layer of code over the published images, nothing is executed."""
    registry: Annotated[str | None, Field(validate_default=True)] = None
    """host[:port][/path]; needed on a cluster."""
    bases: list[str] = []
    """host[:port][/path] of further images that a commit may name in `images`, besides `registry`, those of `sets`, and
    repositories that the run uses already."""
    plain_http: bool = False
    """The registry speaks HTTP; on loopback only. Every other one is still spoken to by HTTPS."""
    registry_auth: Path | None = None
    """A file as `docker login` writes it, in place of the logins of this user."""
    platform: Annotated[str, Field(pattern=r"^[a-z0-9]+/[a-z0-9]+$")] = "linux/amd64"
    git_token_file: Path | None = None
    """Sent to the repository's host alone, by HTTPS."""
    git_user: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "x-access-token"
    git_key_file: Path | None = None
    """For ssh; the host must be in `git_known_hosts`."""
    git_known_hosts: Path | None = None
    cancel_running: bool = False
    """A newer commit of the branch ends a build that is under way."""
    poll_s: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    """Look at the branches every so often, because no forge repeats a delivery that was lost; 0: never."""
    limits: Limits = Limits()
    verify: Verify = Verify()

    @property
    def git_mib(self) -> int:
        """Address space of each process of git, in MiB; where the repository is a folder, its other side works here."""
        return self.limits.memory_mib if self.repository.startswith("/") else self.limits.git_memory_mib

    def logins(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Variables that name the files of its registry logins: `registry_auth`, else those of this user."""
        own = self.registry_auth
        return environ if own is None else {"HOME": "/nonexistent", "REGISTRY_AUTH_FILE": str(own)}

    @property
    def runs_here(self) -> bool:
        """Whether code of a commit runs on this machine as the user of the service: in roles, or in a package build."""
        return self.target == "local" or self.builder in ("buildah", "docker")

    @field_validator("repository")
    @classmethod
    def _place(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme == "https" and "@" in parts.netloc:
            raise ValueError(
                "must have no user: what stands before the @ is shown by pages, provenance and lists of processes;"
                " `git_user` and `git_token_file` are for it"
            )
        if parts.scheme in ("https", "ssh") and parts.hostname and not parts.password:
            return value
        if value.startswith("/") and "\n" not in value:
            return value
        raise ValueError("must be https://HOST/..., ssh://USER@HOST/... without a password, or an absolute folder")

    @field_validator("bases")
    @classmethod
    def _registries(cls, value: list[str]) -> list[str]:
        for name in value:
            if not registry_of_folder(name):
                raise ValueError(f"{name!r} must be host[:port][/path], as in ghcr.io/team, without a tag")
        return value

    @field_validator("branches")
    @classmethod
    def _names(cls, value: list[str]) -> list[str]:
        for name in value:
            if wrong := fault(f"refs/heads/{name}"):
                raise ValueError(f"{name!r} is no branch: {wrong}")
        return value

    @field_validator("paths")
    @classmethod
    def _patterns(cls, value: list[str]) -> list[str]:
        if value and not any(rule.out for rule in Ignore.parse("\n".join(value)).rules):
            raise ValueError(
                'nothing is built by these: they only leave out; begin with `**`, as in ["**", "!docs/**"]'
            )
        return value

    @field_validator("registry")
    @classmethod
    def _somewhere(cls, value: str | None, told: ValidationInfo) -> str | None:
        if value is None and told.data.get("target") == "kubernetes" and told.data.get("builder") != "none":
            raise ValueError("is missing: on a cluster the images need a place, as in ghcr.io/team")
        if value is not None and Reference.try_parse(f"{value}/x") is None:
            raise ValueError(f"must be host[:port][/path] in small letters, as in ghcr.io/team, got {value!r}")
        return value

    @field_validator("plain_http")
    @classmethod
    def _nearby(cls, value: bool, told: ValidationInfo) -> bool:
        registry = registry_of_folder(told.data.get("registry") or "")
        if value and (registry == LOCAL or not loopback(registry)):
            raise ValueError("only for a registry on loopback, as in 127.0.0.1:5000")
        return value

    def recipe(self) -> str:
        """Digest of the settings that determine the result of a build; with another one a commit is built again."""
        what = self.model_dump(
            mode="json", include={"spec", "sets", "run", "target", "builder", "registry", "platform"}
        )
        return hashlib.sha256(json.dumps([RECIPE, what], sort_keys=True).encode()).hexdigest()[:16]


class Config(ConfigModel):
    """Configuration of the service."""

    listen: str = "127.0.0.1:8710"
    state: Path | None = None
    """A folder on a local disk; null: $XDG_STATE_HOME/rlctl/ci."""
    hosts: list[str] = []
    """Names by which it is reached, with the port where there is one; those of loopback are always allowed."""
    tls_cert: Path | None = None
    tls_key: Annotated[Path | None, Field(validate_default=True)] = None
    behind_tls: bool = False
    """A proxy in front of it speaks HTTPS: cookies are marked Secure."""
    proxies: list[str] = []
    """Trusted proxies, by address or by network as in 10.42.0.0/16: a request that comes through one of them is counted
    for its own address, by `X-Forwarded-For`. Without: for that of the proxy."""
    builds: Annotated[int, Field(ge=1, le=64)] = 2
    """Builds at the same time."""
    body_mib: Annotated[float, Field(gt=0, le=25)] = 1.0
    hooks_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] = 6000
    """Signed hooks of one project; also requests by one token, and requests without a token from one address."""
    public_status: bool = False
    """Everything can be read without a token. On loopback it can anyway, unless `hosts` or `behind_tls` say that others
    reach it there by a proxy."""
    projects: Annotated[dict[Annotated[str, Field(pattern=PROJECT_NAME)], Project], Field(min_length=1)]

    @field_validator("tls_key")
    @classmethod
    def _pair(cls, value: Path | None, told: ValidationInfo) -> Path | None:
        if "tls_cert" in told.data and (value is None) != (told.data["tls_cert"] is None):
            raise ValueError("is missing: `tls_cert` needs its key" if value is None else "needs `tls_cert`")
        return value

    @field_validator("proxies")
    @classmethod
    def _networks(cls, value: list[str]) -> list[str]:
        for one in value:
            try:
                all_addresses = ipaddress.ip_network(one).prefixlen == 0
            except ValueError as error:
                raise ValueError(f"{one!r} is no address and no network, as in 10.42.0.0/16: {error}") from None
            if all_addresses:
                raise ValueError(f"{one} is every address, and any client could say where it comes from")
        return value

    @field_validator("listen")
    @classmethod
    def _address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
            raise ValueError("must be HOST:PORT")
        return value

    @property
    def sharing(self) -> str:
        """A warning where code of one repository runs as the user that has the secrets of another, or ""."""
        running = sorted(name for name, project in self.projects.items() if project.runs_here)
        if not running or len({project.repository for project in self.projects.values()}) < 2:
            return ""
        return (
            f"code that is pushed to {', '.join(running)} runs as this user, who has the secrets, runs and logs of all "
            f"{len(self.projects)} projects: code of one can reach the others; give each a user and a service"
        )

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    @property
    def loopback(self) -> bool:
        return self.host in LOOPBACK

    @property
    def here(self) -> tuple[str, str]:
        """Address for programs on this machine, and the `Host:` to send there; empty: that of the address."""
        if self.tls_cert is not None and self.hosts:
            return f"https://{self.hosts[0]}", ""  # the name in the certificate
        scheme = "http" if self.tls_cert is None else "https"
        nowhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host)
        if nowhere is not None:
            return f"{scheme}://{nowhere}:{self.port}", self.hosts[0] if self.hosts else ""
        return f"{scheme}://{self.listen}", ""

    @property
    def open_reading(self) -> bool:
        """Whether reading needs no token: by its settings the service is for this machine alone, or public."""
        return self.public_status or (self.loopback and not self.hosts and not self.behind_tls)

    @property
    def folder(self) -> Path:
        return self.state or state_home() / "ci"


def load(path: Path, *, files: bool = False) -> Config:
    """Read ci.yaml.

    Args:
        files: also check the files that it names: only where the service runs.

    Raises:
        SpecError: the file cannot be read, or is invalid; with every problem and its location.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            [Problem("", f"cannot be read: {_why(error)}", str(path))],
            hint="--config FILE names another; docs/ci.md shows one",
        ) from error
    tree = yaml.read(text, str(path))
    if tree.value is None and not tree.problems:
        tree.report((), "is empty; it has at least `projects`", Location(str(path)))
    found = list(tree.problems)
    values = _absolute(tree.value, path.resolve().parent)
    config = None
    try:
        if tree.value is not None:
            config = Config.model_validate(values)
    except ValidationError as error:
        found += faults.problems(error, tree, _SECTIONS)
    unusable = list(_unusable(values, tree)) if files else []
    found += unusable
    if found or config is None:
        secret = any(one.path.endswith("secret_file") for one in unusable)
        raise SpecError(faults.in_order(found), hint=_MAKE_SECRET if secret else "")
    return config


_SECTIONS: Final[Mapping[str, type[ConfigModel]]] = {
    "": Config, "projects.*": Project, "projects.*.limits": Limits, "projects.*.verify": Verify,
}  # fmt: skip
_OWN_FILES: Final = ("tls_cert", "tls_key")
_FILES: Final = ("secret_file", "registry_auth", "git_token_file", "git_key_file", "git_known_hosts")
_MAKE_SECRET: Final = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"


def _absolute(value: Any, base: Path) -> Any:
    """Values with absolute file names: relative ones begin at the folder of ci.yaml."""
    if not isinstance(value, dict):
        return value

    def placed(section: Any, keys: Collection[str]) -> Any:
        if not isinstance(section, dict):
            return section
        names = {key: one for key, one in section.items() if key in keys and isinstance(one, str)}
        return {**section, **{key: os.path.join(base, os.path.expanduser(one)) for key, one in names.items()}}

    found = placed(value, ("state", *_OWN_FILES))
    if isinstance(found.get("projects"), dict):
        found["projects"] = {name: placed(project, _FILES) for name, project in found["projects"].items()}
    return found


def _unusable(values: Any, tree: Tree) -> Iterator[Problem]:
    """Problems of the files that ci.yaml names: missing, or not what they should be."""
    if not isinstance(values, dict):
        return
    projects = values.get("projects")
    sections: list[tuple[Keys, Any]] = [((), values)]
    sections += [(("projects", name), one) for name, one in projects.items()] if isinstance(projects, dict) else []
    for above, section in sections:
        for key in _FILES if above else _OWN_FILES:
            name = section.get(key) if isinstance(section, dict) else None
            if isinstance(name, str) and (wrong := _wrong_file(key, Path(name))):
                yield located((*above, key), f"{name}: {wrong}", tree.places)
    pair = [Path(values[name]) for name in _OWN_FILES if isinstance(values.get(name), str)]
    if len(pair) == 2 and not any(_wrong_file("", one) for one in pair):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(pair[0], pair[1])
        except OSError as error:
            yield located(("tls_cert",), f"is no certificate of `tls_key`: {_why(error)}", tree.places)


def _wrong_file(key: str, path: Path) -> str:
    try:
        if key == "secret_file":
            secrets("", path)
        path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        return _why(error)
    except SpecError as error:
        return error.problems[0].message.removeprefix(f"{path}: ")
    return ""


def _why(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


def secrets(project: str, path: Path) -> tuple[bytes, ...]:
    """Secrets of a webhook. The file is read for every use, so that one can be replaced while the service runs.

    Raises:
        SpecError: the file cannot be read, holds no secret, or one that is too short.
    """
    try:
        lines = [line.strip() for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise SpecError([Problem(f"projects.{project}.secret_file", f"{path}: {_why(error)}")]) from error
    found = tuple(line for line in lines if line)
    if not found or any(len(line) < MIN_SECRET for line in found):
        raise SpecError(
            [Problem(f"projects.{project}.secret_file", f"{path}: needs secrets of at least {MIN_SECRET} characters")],
            hint=_MAKE_SECRET,
        )
    return found
