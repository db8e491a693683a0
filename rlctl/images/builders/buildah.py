"""buildah: needs no daemon and, with BUILDAH_ISOLATION=chroot, no more rights than a container has.

podman builds as buildah does, and knows the same options.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from rlctl.images.builders.base import Build, BuildFailed, PushFailed, Run

_HEX = re.compile(r"(?:sha256:)?([0-9a-f]{64})")


class Buildah:
    """Builder that runs buildah.

    Args:
        run: starts programs.
        scratch: an empty folder for files that the program writes.
    """

    name = "buildah"
    look: tuple[str, ...] = ("buildah", "inspect", "--type", "image", "--format", "{{.FromImageID}}")

    def __init__(self, run: Run, scratch: Path) -> None:
        self._run = run
        self._scratch = scratch

    def refusal(self) -> str:
        return ""

    def build_argv(self, build: Build, id_file: Path) -> list[str]:
        """The whole command of a build.

        Layers are kept and found again by their content. All times are 0, so that equal content has equal digests on
        every machine, and what a node has already is not pulled again.
        """
        argv = [self.name, "build", "--layers", "--timestamp", "0", "--file", str(build.file), "--tag", build.tag]
        argv += ["--iidfile", str(id_file)]
        argv += ["--target", build.target] if build.target else []
        argv += [part for key, value in build.args.items() for part in ("--build-arg", f"{key}={value}")]
        argv += [part for volume in build.volumes for part in ("--volume", volume)]
        argv += ["--network", build.network] if build.network else []
        argv += [] if build.verify else ["--tls-verify=false"]
        return [*argv, str(build.context)]

    def push_argv(self, tag: str, digest_file: Path, *, verify: bool) -> list[str]:
        """The whole command of a push."""
        argv = [self.name, "push", "--digestfile", str(digest_file), *([] if verify else ["--tls-verify=false"])]
        return [*argv, tag, f"docker://{tag}"]

    def build(self, build: Build, say: Callable[[str], object] | None = None) -> str:
        id_file = self._scratch / "image-id"
        id_file.unlink(missing_ok=True)
        ended = self._run(self.build_argv(build, id_file), say)
        if ended.code:
            raise BuildFailed(self.name, build.tag, ended)
        return digest_in(id_file.read_text())

    def find(self, tag: str) -> str | None:
        ended = self._run([*self.look, tag])
        return digest_in(ended.lines[-1]) if ended.code == 0 and ended.lines else None

    def push(self, tag: str, *, verify: bool, say: Callable[[str], object] | None = None) -> str:
        digest_file = self._scratch / "digest"
        digest_file.unlink(missing_ok=True)
        ended = self._run(self.push_argv(tag, digest_file, verify=verify), say)
        if ended.code:
            raise PushFailed(self.name, tag, ended)
        return digest_in(digest_file.read_text())


class Podman(Buildah):
    """Builder that runs podman."""

    name = "podman"
    look: tuple[str, ...] = ("podman", "image", "inspect", "--format", "{{.Id}}")


def digest_in(text: str) -> str:
    """`sha256:<64 hex digits>` from text that holds them, with or without the prefix."""
    match = _HEX.search(text)
    assert match, f"no digest in {text!r}"
    return f"sha256:{match[1]}"
