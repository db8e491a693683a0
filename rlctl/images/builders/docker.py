"""docker: the work is done by a daemon, which has its own view of files, times and registries."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from rlctl.errors import UsageError
from rlctl.images.builders.base import Build, BuildFailed, PushFailed, Run
from rlctl.images.builders.buildah import digest_in

_PUSHED = re.compile(r"digest: (sha256:[0-9a-f]{64})")


class Docker:
    """A `Builder`.

    Args:
        run: starts programs.
        scratch: an empty folder, for what the program hands back in files.
    """

    name = "docker"

    def __init__(self, run: Run, scratch: Path) -> None:
        self._run = run
        self._scratch = scratch

    def refusal(self) -> str:
        ended = self._run(["docker", "version", "--format", "{{.Server.Version}}"])
        return "" if ended.code == 0 else f"its daemon does not answer: {' '.join(ended.lines[-1:]) or ended.code}"

    def build_argv(self, build: Build, id_file: Path) -> list[str]:
        """The whole command of a build.

        Raises:
            UsageError: it asks for volumes.
        """
        if build.volumes:
            raise UsageError(
                "docker build binds no folders, so --volume does nothing",
                hint="use --builder buildah or podman, or a base image that holds what the build needs",
            )
        argv = ["docker", "build", "--file", str(build.file), "--tag", build.tag, "--iidfile", str(id_file)]
        argv += ["--target", build.target] if build.target else []
        argv += [part for key, value in build.args.items() for part in ("--build-arg", f"{key}={value}")]
        argv += ["--network", build.network] if build.network else []
        return [*argv, str(build.context)]

    def push_argv(self, tag: str) -> list[str]:
        """The whole command of a push; which registries may speak plain HTTP is for the daemon to know."""
        return ["docker", "push", tag]

    def build(self, build: Build, say: Callable[[str], object] | None = None) -> str:
        id_file = self._scratch / "image-id"
        id_file.unlink(missing_ok=True)
        ended = self._run(self.build_argv(build, id_file), say)
        if ended.code:
            raise BuildFailed(self.name, build.tag, ended)
        return digest_in(id_file.read_text())

    def find(self, tag: str) -> str | None:
        ended = self._run(["docker", "image", "inspect", "--format", "{{.Id}}", tag])
        return digest_in(ended.lines[-1]) if ended.code == 0 and ended.lines else None

    def push(self, tag: str, *, verify: bool, say: Callable[[str], object] | None = None) -> str:
        ended = self._run(self.push_argv(tag), say)
        found = _PUSHED.findall("\n".join(ended.lines))
        if ended.code or not found:
            raise PushFailed(self.name, tag, ended)
        return str(found[-1])
