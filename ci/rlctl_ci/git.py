"""The repository: its address is the configuration's, commits go by full name, and nothing in it is executed."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from rlctl.images.base import Ended
from rlctl_ci.config import Project
from rlctl_ci.errors import BuildStopped, Transient
from rlctl_ci.programs import Bounds, Programs, clean
from rlctl_ci.refs import fault, is_sha, slug
from rlctl_ci.tars import lay
from rlctl_ci.work import Job

LOOK_WITHIN_S: Final = 30.0
FETCH_WITHIN_S: Final = 300.0
MAX_FILES: Final = 50_000
_LIST_MIB: Final = 32
"""Of the names of all of them."""
MAX_DEPTH: Final = 100
"""Of folders in each other: what takes a folder away goes down by calling itself, also when the service starts."""
_LOOK_S: Final = 0.1
_GONE: Final = re.compile(r"not our ref|request for unadvertised object")
"""How a repository says that it has no such commit; by the older protocol it says the second."""
_SETTINGS: Final = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "protocol.allow": "never",
    "fetch.fsckObjects": "true",
    "fetch.recurseSubmodules": "false",
    "transfer.bundleURI": "false",
    "http.followRedirects": "false",
    "credential.helper": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "remote.origin.promisor": "false",
}


@dataclass(frozen=True, slots=True)
class Git:
    """A `Fetcher`.

    Args:
        project: whose repository.
        store: a folder of its own that stays.
        environ: ours; most of it is not passed on.
    """

    project: Project
    store: Path
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def look(self, ref: str, stop: Callable[[], None] = lambda: None) -> str | None:
        """The commit that a branch is at; None: there is no such branch.

        Raises:
            Transient: the repository does not answer.
        """
        assert not fault(ref), ref
        self.store.mkdir(mode=0o700, parents=True, exist_ok=True)
        argv = ["ls-remote", "--quiet", "--end-of-options", self.project.repository, ref]
        ended = self._git(argv, Bounds(LOOK_WITHIN_S), stop)
        if ended.code:
            raise Transient("fetch", f"the repository does not answer: {_last(ended)}")
        for line in ended.lines:
            sha, _, name = line.partition("\t")
            if name == ref and is_sha(sha):  # ls-remote matches endings of names
                return sha
        return None

    def head(self, job: Job) -> str | None:
        return self.look(job.build.ref, job.stop)

    def fetch(self, job: Job) -> Path:
        """Raises:
        Transient: it does not come.
        BuildStopped: it is not there, too large, or holds what has no place on a disk.
        """
        sha, mebibytes = job.build.sha, self.project.limits.source_mib
        bounds = Bounds(FETCH_WITHIN_S, file_mib=mebibytes)
        with self._bare("source.git", job.stop) as bare:
            if self._git(["-C", str(bare), "cat-file", "-e", f"{sha}^{{commit}}"], bounds, job.stop).code:
                argv = ["-C", str(bare), "fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head"]
                ended = self._git([*argv, "--end-of-options", self.project.repository, sha], bounds, job.stop)
                if ended.code:
                    raise Transient("fetch", f"{sha[:12]} could not be fetched: {_last(ended)}")
        self._count(bare, job, bounds)
        archive = job.folder / "source.tar"
        ended = self._git(["-C", str(bare), "archive", "--format=tar", sha], bounds, job.stop, out=archive)
        if ended.code:
            raise BuildStopped("source", f"{sha[:12]} could not be unpacked: {_last(ended)}", hint="limits.source_mib")
        source = job.folder / "source"
        unpack(archive, source, mebibytes << 20)
        archive.unlink()
        return source

    def _count(self, bare: Path, job: Job, bounds: Bounds) -> None:
        """Refuse a commit of too many files before git archive, which holds a list of all in memory first.

        Eleven objects are enough for 10^10 files. Folders are listed as well, so that every step of git's walk writes
        something, and it is ended by the length of what it has written.

        Raises:
            BuildStopped: there are more than MAX_FILES files and folders.
        """
        listed = job.folder / "names"
        argv = ["-C", str(bare), "ls-tree", "-r", "-t", "-z", "--name-only", job.build.sha]
        ended = self._git(argv, replace(bounds, file_mib=_LIST_MIB), job.stop, out=listed)
        if listed.stat().st_size >= _LIST_MIB << 20 or listed.read_bytes().count(b"\0") > MAX_FILES:
            raise BuildStopped("source", f"the commit has more than {MAX_FILES} files and folders")
        if ended.code:
            raise BuildStopped("source", f"{job.build.sha[:12]} cannot be read: {_last(ended)}")
        listed.unlink()

    def before_or_same(self, job: Job, sha: str) -> bool:
        """Whether the commit of the build is `sha` or an ancestor; asks for commits alone, no files.

        Raises:
            Transient: the repository does not say.
        """
        if job.build.sha == sha:
            return True
        bounds = Bounds(FETCH_WITHIN_S)
        with self._bare("history.git", job.stop) as bare:
            argv = ["-C", str(bare), "fetch", "--quiet", "--filter=tree:0", "--no-tags", "--no-write-fetch-head"]
            for one in (job.build.sha, sha):
                if not self._git(["-C", str(bare), "cat-file", "-e", f"{one}^{{commit}}"], bounds, job.stop).code:
                    continue  # a newer build has brought the bad commit with it
                ended = self._git([*argv, "--end-of-options", self.project.repository, one], bounds, job.stop)
                if ended.code and one == sha and any(_GONE.search(line) for line in ended.lines):
                    return False  # nothing in the repository descends from it
                if ended.code:
                    raise Transient("fetch", f"the history of {one[:12]} could not be fetched: {_last(ended)}")
            ended = self._git(["-C", str(bare), "merge-base", "--is-ancestor", job.build.sha, sha], bounds, job.stop)
            if ended.code not in (0, 1):
                raise Transient("fetch", f"the history of {sha[:12]} cannot be read: {_last(ended)}")
            return ended.code == 0

    def changed(self, before: str, after: str, stop: Callable[[], None] = lambda: None) -> list[str] | None:
        """Names of files that differ between two commits; nothing is asked over the network.

        Args:
            before, after: by full name; `fetch` has brought them.

        Returns:
            None: one of them is not here (any more), or they differ in more than can be listed.
        """
        assert is_sha(before), before
        assert is_sha(after), after
        with self._bare("source.git", stop) as bare, tempfile.TemporaryDirectory(dir=self.store) as folder:
            listed = Path(folder) / "names"
            argv = ["-C", str(bare), "diff-tree", "-r", "--name-only", "-z", "--no-renames", before, after]
            ended = self._git(argv, Bounds(LOOK_WITHIN_S, file_mib=_LIST_MIB), stop, out=listed)
            names = listed.read_bytes().split(b"\0")[:-1]
        return None if ended.code else [name.decode("utf-8", "surrogateescape") for name in names]

    @contextmanager
    def _bare(self, name: str, stop: Callable[[], None]) -> Iterator[Path]:
        """A repository of ours, for one build at a time, without what a git that was killed has left in it."""
        path = self.store / f"{slug(self.project.repository)}-{name}"
        self.store.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("a") as lock:
            while not _taken(lock.fileno()):
                stop()
                time.sleep(_LOOK_S)
            for left in (*path.glob("*.lock"), *path.glob("objects/pack/tmp_*")):
                left.unlink()
            if not path.exists():
                part = path.with_suffix(".part")
                shutil.rmtree(part, ignore_errors=True)
                ended = self._git(["init", "--quiet", "--bare", "--template=", str(part)], Bounds(LOOK_WITHIN_S), stop)
                if ended.code:
                    raise BuildStopped("disk", f"{path}: {_last(ended)}")
                part.rename(path)
            yield path

    def _git(self, argv: list[str], bounds: Bounds, stop: Callable[[], None], *, out: Path | None = None) -> Ended:
        """
        Raises:
            Transient: it took too long.
        """
        bounds = replace(bounds, memory_mib=self.project.limits.memory_mib)
        try:
            return Programs(self._environ(), bounds, stop, self.store)(["git", *argv], out=out)
        except BuildStopped as error:  # it took too long: the network may be faster next time
            raise Transient("fetch", error.message) from error

    def _environ(self) -> dict[str, str]:
        """No configuration but ours, no question asked, one protocol."""
        url = self.project.repository
        scheme = "file" if url.startswith("/") else urlsplit(url).scheme
        settings = {**_SETTINGS, f"protocol.{scheme}.allow": "always"}
        if scheme == "https" and "SSL_CERT_FILE" in self.environ:  # which git, unlike Python, does not look at
            settings["http.sslCAInfo"] = self.environ["SSL_CERT_FILE"]
        if self.project.git_token_file is not None and scheme == "https":
            import base64

            token = self.project.git_token_file.read_text().strip()
            basic = base64.b64encode(f"{self.project.git_user}:{token}".encode()).decode()
            host = urlsplit(url).netloc.rpartition("@")[2]
            settings[f"http.https://{host}/.extraHeader"] = f"Authorization: Basic {basic}"
        found = {
            "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false", "GIT_LFS_SKIP_SMUDGE": "1", "GIT_OPTIONAL_LOCKS": "0",
            "GIT_CONFIG_COUNT": str(len(settings)),
            **{f"GIT_CONFIG_KEY_{at}": key for at, key in enumerate(settings)},
            **{f"GIT_CONFIG_VALUE_{at}": value for at, value in enumerate(settings.values())},
        }  # fmt: skip
        if scheme == "ssh":
            ssh = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-F", "/dev/null"]
            if self.project.git_key_file is not None:
                ssh += ["-o", "IdentitiesOnly=yes", "-i", str(self.project.git_key_file)]
            if self.project.git_known_hosts is not None:
                ssh += ["-o", f"UserKnownHostsFile={self.project.git_known_hosts}"]
            found["GIT_SSH_COMMAND"] = shlex.join(ssh)  # git gives this one to a shell; nothing of a push is in it
        return clean(self.environ, self.store, **found)


def unpack(archive: Path, to: Path, most_bytes: int) -> None:
    """Files of a commit below a folder: no link leads out of it, nothing is special, and it has an end.

    Raises:
        BuildStopped: something is otherwise.
    """
    to.mkdir(mode=0o700)
    size = files = 0
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                size, files = size + member.size, files + 1
                if size > most_bytes or files > MAX_FILES:
                    raise BuildStopped(
                        "source", f"the commit holds more than {most_bytes >> 20} MiB or {MAX_FILES} files"
                    )
                if member.name.count("/") > MAX_DEPTH:
                    raise BuildStopped("source", f"the commit has folders deeper than {MAX_DEPTH}")
                lay(tar, member, to)
    except (tarfile.TarError, OSError, ValueError) as error:
        raise BuildStopped("source", f"the commit cannot be unpacked: {error}") from error


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _last(ended: Ended) -> str:
    said = [line for line in ended.lines if line.strip()]
    return said[-1][:300] if said else f"exit {ended.code}"
