"""docker: the work is done by a daemon, which has its own view of files, times and registries."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from rlctl.errors import UsageError
from rlctl.image_names import DIGEST
from rlctl.images.builders.base import Build, PushFailed
from rlctl.images.builders.buildah import Buildah

_PUSHED = re.compile(f"digest: ({DIGEST})")


class Docker(Buildah):
    """Builder that runs docker."""

    name = "docker"
    look: tuple[str, ...] = ("docker", "image", "inspect", "--format", "{{.Id}}")

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

    def push(self, tag: str, *, verify: bool, say: Callable[[str], object] | None = None) -> str:
        # the daemon's configuration decides which registries may speak plain HTTP
        ended = self._run(["docker", "push", tag], say)
        found = _PUSHED.findall("\n".join(ended.lines))
        if ended.code or not found:
            raise PushFailed(self.name, tag, ended)
        return str(found[-1])
