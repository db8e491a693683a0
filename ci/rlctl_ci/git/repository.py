"""Repository of a project: fetched from the configured address, by full commit names, and nothing in it is executed."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from rlctl.images.builders.base import Ended
from rlctl_ci.config.settings import Project
from rlctl_ci.core.build_attempt import Job
from rlctl_ci.core.errors import BuildStopped, CiError, Transient
from rlctl_ci.git.plumbing import cause, damaged, environment, hint, out_of_memory, too_large
from rlctl_ci.git.refs import fault, is_sha, slug
from rlctl_ci.git.tars import lay
from rlctl_ci.sandbox.locks import held
from rlctl_ci.sandbox.programs import Bounds, Programs, require_room

LOOK_WITHIN_S: Final = 30.0
MAX_FILES: Final = 50_000
_LIST_MIB: Final = 32
"""MiB of a list of file names, at most."""
MAX_DEPTH: Final = 100
"""Depth of folders, at most: `shutil.rmtree` is recursive, and it also runs when the service starts."""
_GONE: Final = re.compile(r"not our ref|request for unadvertised object")
"""Answers of a repository that has no such commit; the second is that of the older protocol."""
_KEPT_TIMES: Final = 4
"""Size of a kept repository, at most, in `limits.source_mib`: with it, a fetch transfers only what is new."""
_KEPT_FILES: Final = 10_000
"""Files of a kept repository, at most: each of them slows git down."""
_ATTRIBUTES: Final = "* -export-subst -export-ignore -text -ident !filter !working-tree-encoding\n"
"""Attributes that override those of a commit: all its files are deployed, byte for byte. `!` where git knows no `-`."""


@dataclass(frozen=True, slots=True)
class Git:
    """`Fetcher` that runs git.

    Args:
        project: project of the repository.
        store: a folder of its own that is kept between builds.
        environ: of this process; most of it is not passed on.
    """

    project: Project
    store: Path
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def look(self, ref: str, stop: Callable[[], None] = lambda: None) -> str | None:
        """Head commit of a branch; None: there is no such branch.

        Raises:
            Transient: the repository does not answer.
            BuildStopped: the token for it cannot be read.
        """
        assert not fault(ref), ref
        self.store.mkdir(mode=0o700, parents=True, exist_ok=True)
        argv = ["ls-remote", "--quiet", "--end-of-options", self.project.repository, ref]
        found: list[str] = []

        def hear(line: str) -> None:
            sha, _, name = line.partition("\t")
            if name == ref and is_sha(sha):  # ls-remote matches endings of names, of which there may be thousands
                found.append(sha)

        ended = self._git(argv, replace(self._bounds, time_s=LOOK_WITHIN_S), stop, far=True, say=hear)
        if ended.code:
            raise Transient("fetch", f"the repository does not answer: {cause(ended)}", hint=hint(ended))
        return found[0] if found else None

    def head(self, job: Job) -> str | None:
        return self.look(job.build.ref, job.stop)

    def fetch(self, job: Job) -> Path:
        """Fetch the commit of a build; returns the folder of its files.

        Raises:
            Transient: it cannot be fetched.
            BuildStopped: it is too large, cannot be unpacked, or holds files that are not allowed.
        """
        sha = job.build.sha
        archive, source = job.folder / "source.tar", job.folder / "source"
        with self._bare("source.git", job.stop) as bare:
            self._bring(bare, sha, f"refs/rlctl/{slug(job.build.ref)}", ["--depth=1"], self._bounds, job.stop)
            self._count(bare, job)
            ended = self._git(["-C", str(bare), "archive", "--format=tar", sha], self._bounds, job.stop, out=archive)
            if too_large(ended):
                said = f"{sha[:12]} holds more than {self.project.limits.source_mib} MiB"
                raise BuildStopped("source", said, hint="limits.source_mib in ci.yaml")
            if ended.code:
                said = f"{sha[:12]} cannot be unpacked: {cause(ended)}"
                raise self._failed(bare, ended, BuildStopped("source", said, hint=hint(ended)))
        unpack(archive, source, self.project.limits.source_mib << 20, job.stop)
        archive.unlink()
        return source

    def _bring(
        self, bare: Path, sha: str, ref: str, how: Sequence[str], bounds: Bounds, stop: Callable[[], None]
    ) -> None:  # fmt: skip
        """Fetch a commit, unless it is there; `ref` keeps it, so that the next fetch transfers only what is missing.

        Raises:
            Transient: it cannot be fetched.
            BuildStopped: it is too large.
        """
        if not self._git(["-C", str(bare), "cat-file", "-e", f"{sha}^{{commit}}"], self._bounds, stop).code:
            return
        argv = ["-C", str(bare), "fetch", "--quiet", *how, "--no-tags", "--no-write-fetch-head", "--end-of-options"]
        ended = self._git([*argv, self.project.repository, f"+{sha}:{ref}"], bounds, stop, far=True)
        if too_large(ended):
            said = f"{sha[:12]} could not be fetched: it is larger than {bounds.file_mib} MiB"
            raise BuildStopped("source", said, hint="limits.source_mib in ci.yaml")
        if ended.code:
            said = f"{sha[:12]} could not be fetched: {cause(ended)}"
            if out_of_memory(ended):
                raise BuildStopped("source", said, hint=hint(ended))
            raise self._failed(bare, ended, Transient("fetch", said, hint=hint(ended)))

    def _count(self, bare: Path, job: Job) -> None:
        """Refuse a commit of too many files before git archive, which holds a list of all in memory first.

        Eleven objects are enough for 10^10 files. Folders are listed as well, so that every step of git's walk writes
        something, and the limit of its output ends it.

        Raises:
            BuildStopped: there are more than MAX_FILES files and folders.
        """
        listed = job.folder / "names"
        argv = ["-C", str(bare), "ls-tree", "-r", "-t", "-z", "--name-only", job.build.sha]
        ended = self._git(argv, replace(self._bounds, file_mib=_LIST_MIB), job.stop, out=listed)
        if listed.stat().st_size >= _LIST_MIB << 20 or listed.read_bytes().count(b"\0") > MAX_FILES:
            raise BuildStopped("source", f"the commit has more than {MAX_FILES} files and folders")
        if ended.code:
            said = f"{job.build.sha[:12]} cannot be read: {cause(ended)}"
            raise self._failed(bare, ended, BuildStopped("source", said))
        listed.unlink()

    def before_or_same(self, job: Job, sha: str) -> bool:
        """Whether the commit of the build is `sha` or an ancestor of it; fetches commits alone, no files.

        Raises:
            Transient: the repository does not answer.
        """
        if job.build.sha == sha:
            return True
        kept = f"refs/rlctl/{slug(job.build.ref)}"
        # from a local folder, git does not record that objects left out by a filter are not missing
        how = [] if self.project.repository.startswith("/") else ["--filter=tree:0"]
        bounds = replace(self._bounds, file_mib=_KEPT_TIMES * self.project.limits.source_mib)
        with self._bare("history.git", job.stop) as bare:
            self._bring(bare, job.build.sha, kept, how, bounds, job.stop)
            try:
                self._bring(bare, sha, f"{kept}-bad", how, bounds, job.stop)
            except Transient as error:
                if _GONE.search(error.message):
                    return False  # nothing in the repository descends from it
                raise
            argv = ["-C", str(bare), "merge-base", "--is-ancestor", job.build.sha, sha]
            ended = self._git(argv, self._bounds, job.stop)
            if ended.code not in (0, 1):
                said = f"the history of {sha[:12]} cannot be read: {cause(ended)}"
                raise self._failed(bare, ended, Transient("fetch", said))
            return ended.code == 0

    def changed(self, job: Job, before: str) -> list[str] | None:
        """Files in which the commit differs from another one; uses no network.

        Args:
            job: of the commit that `fetch` has fetched.
            before: another one that it has fetched, by full name.

        Returns:
            None: one of them is not here (any more), or they differ in more than can be listed.
        """
        assert is_sha(before), before
        listed = job.folder / "changed"
        with self._bare("source.git", job.stop) as bare:
            argv = ["-C", str(bare), "diff-tree", "-r", "--name-only", "-z", "--no-renames", before, job.build.sha]
            ended = self._git(argv, replace(self._bounds, file_mib=_LIST_MIB), job.stop, out=listed)
        names = listed.read_bytes().split(b"\0")[:-1]
        return None if ended.code else [name.decode("utf-8", "surrogateescape") for name in names]

    @contextmanager
    def _bare(self, name: str, stop: Callable[[], None]) -> Iterator[Path]:
        """Bare local repository, locked for one build, without the lock files and parts that a killed git has left."""
        path = self.store / f"{slug(self.project.repository)}-{name}"
        self.store.mkdir(mode=0o700, parents=True, exist_ok=True)
        with held(path.with_suffix(".lock"), stop):
            for left in (*path.glob("*.lock"), *path.glob("refs/rlctl/*.lock"), *path.glob("objects/pack/tmp_*")):
                left.unlink()
            if _overgrown(path, _KEPT_TIMES * self.project.limits.source_mib << 20):
                drop(path)
            if not path.exists():
                part = path.with_suffix(".part")
                shutil.rmtree(part, ignore_errors=True)
                ended = self._git(["init", "--quiet", "--bare", "--template=", str(part)], self._bounds, stop)
                if ended.code:
                    raise BuildStopped("disk", f"{path}: {cause(ended)}")
                part.rename(path)
            (path / "info").mkdir(exist_ok=True)
            (path / "info" / "attributes").write_text(_ATTRIBUTES)
            yield path

    def _failed(self, bare: Path, ended: Ended, error: CiError) -> CiError:
        """`error`, or the damage behind it; a damaged copy is removed, and the next attempt fetches it again."""
        if damaged(ended):
            drop(bare)
            return Transient("fetch", f"our copy was damaged, and is made anew: {cause(ended)}")
        return error

    @property
    def _bounds(self) -> Bounds:
        limits = self.project.limits
        return Bounds(limits.time_s, self.project.git_mib, limits.source_mib)

    def _git(
        self, argv: list[str], bounds: Bounds, stop: Callable[[], None], *, far: bool = False, out: Path | None = None,
        say: Callable[[str], object] | None = None,
    ) -> Ended:  # fmt: skip
        """Run git.

        Args:
            far: git contacts the repository.
            out, say: as in `Programs`.

        Raises:
            Transient: it took too long.
            BuildStopped: the token cannot be read.
            OSError: the disk is full.
        """
        environ = environment(self.project, self.store, self.environ, far=far)
        try:
            ended = Programs(environ, bounds, stop, self.store)(["git", *argv], say, out=out)
        except BuildStopped as error:  # it took too long: the network may be faster next time
            raise Transient("fetch", error.message, hint=error.hint) from error
        require_room(ended)
        return ended


def _overgrown(folder: Path, most_bytes: int) -> bool:
    """Whether a repository has more bytes than that, or so many files that git is slow."""
    size = files = 0
    for path in folder.rglob("*"):
        size, files = size + path.stat().st_blocks * 512, files + 1
        if size > most_bytes or files > _KEPT_FILES:
            return True
    return False


def drop(bare: Path) -> None:
    """Remove a copy of a repository; renamed first: half of one is useless to git, and would not be replaced."""
    part = bare.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    bare.rename(part)
    shutil.rmtree(part)


def unpack(archive: Path, to: Path, most_bytes: int, stop: Callable[[], None] = lambda: None) -> None:
    """Unpack the files of a commit into a folder: no link leads out of it, no special files, a limited size.

    Raises:
        BuildStopped: the archive holds anything else, or cannot be unpacked.
    """
    to.mkdir(mode=0o700)
    size = files = 0
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                stop()
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
