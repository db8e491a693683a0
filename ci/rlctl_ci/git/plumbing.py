"""Environment of git, and the meaning of its failures."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from rlctl.images.builders.base import Ended
from rlctl_ci.config.settings import Project
from rlctl_ci.core.errors import BuildStopped
from rlctl_ci.sandbox.keeper import FILE_SIGNAL
from rlctl_ci.sandbox.programs import clean

SILENCE_S: Final = 120
"""Seconds without data that end a transfer: a server that packs a large commit reports every five seconds."""
_SETTINGS: Final = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "protocol.allow": "never",
    "fetch.fsckObjects": "true",
    "fetch.recurseSubmodules": "false",
    "transfer.bundleURI": "false",
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1",
    "http.lowSpeedTime": str(SILENCE_S),
    "credential.helper": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "remote.origin.promisor": "false",
    # what a commit holds is streamed and mapped in parts: `limits.git_memory_mib` is less than a commit may have
    "core.bigFileThreshold": "32m",
    "core.deltaBaseCacheLimit": "32m",
    "core.packedGitWindowSize": "32m",
    "core.packedGitLimit": "256m",
    "pack.threads": "1",
}
PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy")
_CAUSE: Final = re.compile(
    r"(fatal|error|ssh): |Host key |No \S+ host key |.*Permission denied|kex_exchange|Connection "
)
_CONSEQUENCE: Final = re.compile(r"fatal: (Could not read from remote|The remote end hung up|index-pack failed)")
_MEMORY: Final = re.compile(r"Out of memory|Cannot allocate memory")
_HINTS: Final = {
    r"dubious ownership": "let the service run as the user that the folder belongs to, or name it by ssh:// or https://",
    r"[Hh]ost key ": "git_known_hosts in ci.yaml: a file with the line of this host, as ssh-keyscan prints it",
    r"Permission denied \(publickey": "git_key_file in ci.yaml: a key that may read the repository",
    r"could not read Username|Authentication failed": "git_token_file in ci.yaml: a token that may read the repository",
    _MEMORY.pattern: "limits.git_memory_mib in ci.yaml; of a folder limits.memory_mib",
}
_LARGE: Final = re.compile(rf"died of signal {FILE_SIGNAL}\b|File too large")
_DAMAGED: Final = re.compile(
    r"does not match index|too short to be a packfile|did not receive expected object|reference broken|Could not read "
    r"[0-9a-f]{40}|not a tree object|(bad|corrupt|loose) (loose )?object|is empty$"
)


def environment(project: Project, home: Path, environ: Mapping[str, str], *, far: bool) -> dict[str, str]:
    """Environment variables of git: no configuration but ours, and no prompts.

    Args:
        project: project of the repository.
        home: in place of a person's.
        environ: of this process.
        far: git contacts the repository, by the one protocol of its address; only then does it get the token.

    Raises:
        BuildStopped: the token cannot be read.
    """
    settings = {**_SETTINGS, **(_far(project, environ) if far else {})}
    found = {
        "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "/bin/false", "GIT_LFS_SKIP_SMUDGE": "1", "GIT_OPTIONAL_LOCKS": "0",
        "GIT_CONFIG_COUNT": str(len(settings)),
        **{f"GIT_CONFIG_KEY_{at}": key for at, key in enumerate(settings)},
        **{f"GIT_CONFIG_VALUE_{at}": value for at, value in enumerate(settings.values())},
    }  # fmt: skip
    if far and _scheme(project) == "ssh":
        ssh = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-F", "/dev/null"]
        ssh += [
            "-o",
            "ConnectTimeout=30",
            "-o",
            "ServerAliveInterval=30",
            "-o",
            f"ServerAliveCountMax={SILENCE_S // 30}",
        ]
        if project.git_key_file is not None:
            ssh += ["-o", "IdentitiesOnly=yes", "-i", str(project.git_key_file)]
        if project.git_known_hosts is not None:
            ssh += ["-o", f"UserKnownHostsFile={project.git_known_hosts}"]
        found["GIT_SSH_COMMAND"] = shlex.join(ssh)  # git gives this one to a shell; nothing of a push is in it
    if far:
        found |= {name: environ[name] for name in PROXIES if name in environ}
    else:
        found["GIT_NO_LAZY_FETCH"] = "1"
    return clean(environ, home, **found)


def _far(project: Project, environ: Mapping[str, str]) -> dict[str, str]:
    url, scheme = project.repository, _scheme(project)
    settings = {f"protocol.{scheme}.allow": "always"}
    if scheme == "https" and "SSL_CERT_FILE" in environ:  # which git, unlike Python, does not look at
        settings["http.sslCAInfo"] = environ["SSL_CERT_FILE"]
    if scheme == "https" and project.git_token_file is not None:
        try:
            token = project.git_token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = (getattr(error, "strerror", None) or str(error)).lower()
            raise BuildStopped("config", f"git_token_file: {project.git_token_file} cannot be read: {why}") from error
        basic = base64.b64encode(f"{project.git_user}:{token}".encode()).decode()
        settings[f"http.https://{urlsplit(url).netloc}/.extraHeader"] = f"Authorization: Basic {basic}"
    return settings


def _scheme(project: Project) -> str:
    return "file" if project.repository.startswith("/") else urlsplit(project.repository).scheme


def cause(ended: Ended) -> str:
    """Cause of a failure of git: its first line that names one, no consequence of it."""
    said = [line.strip() for line in ended.lines if line.strip()]
    causes = [line for line in said if _CAUSE.match(line)]
    told = [line for line in causes if not _CONSEQUENCE.match(line)] or causes or said[-1:]
    return told[0][:300] if told else f"exit {ended.code}"


def hint(ended: Ended) -> str:
    """Remedy of git's failure, where one is known."""
    said = "\n".join(ended.lines)
    return next((what for sign, what in _HINTS.items() if re.search(sign, said)), "")


def too_large(ended: Ended) -> bool:
    """Whether git, or a program that it has started, has written a file to the limit of `Bounds.file_mib`."""
    return ended.code == 128 + FILE_SIGNAL or any(_LARGE.search(line) for line in ended.lines)


def out_of_memory(ended: Ended) -> bool:
    """Whether git has reached `Bounds.memory_mib`."""
    return any(_MEMORY.search(line) for line in ended.lines)


def damaged(ended: Ended) -> bool:
    """Whether our copy of the repository is damaged, as after a loss of power."""
    return any(_DAMAGED.search(line) for line in ended.lines)
