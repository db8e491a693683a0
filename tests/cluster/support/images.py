"""The role images of this checkout, built and pushed once a session by `rlctl image push`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rlctl.images.builders.base import NAMES, OVERLAY_MARK
from rlctl.images.requirements import LOCK, default_torch, parse
from tests.cluster.support.contract import Contract
from tests.cluster.support.telling import TALLY

ROOT: Final = Path(__file__).parents[3]
OFFLINE_BASE: Final = "localhost/python:3.11-slim"
"""Name of the base of our Dockerfiles where no public registry is reached, if it was put there by hand."""
TORCH_INDEX: Final = os.environ.get("RLCTL_TEST_TORCH_INDEX", "")
"""Torch's own index of CPU builds, where the usual index has none: no node of a test cluster has a GPU."""


def role_images(contract: Contract, folder: Path) -> dict[str, str]:
    """Build and push all three; layers that have not changed are neither built nor sent again.

    Returns:
        Image name -> reference by digest.
    """
    started = time.monotonic()
    wanted = ["--build-arg", f"TORCH_INDEX={TORCH_INDEX}"]
    if TORCH_INDEX or "find-links" in pip_settings():  # no test needs CUDA, where pip knows of a build without
        torch = default_torch(parse((ROOT / LOCK).read_text()))
        wanted += ["--build-arg", f"TORCH={torch}+cpu"]
    answer = _push(contract, *wanted, *_settings(folder, *NAMES))
    for image in answer["images"]:
        layers = image.get("layers") or []
        size = f"{(image.get('bytes') or 0) / 1e6:.1f} MB in {len(layers)} layers"
        TALLY.figures.append(f"image {image['name']}: {size if layers else 'was there'}")
    TALLY.figures.append(f"images built and pushed in {time.monotonic() - started:.0f} s")
    return dict(answer["overlay"]["images"])


def service_image(contract: Contract, folder: Path) -> str:
    """Build and push that of `rlctl ci serve`; returns its reference by digest."""
    answer = _push(contract, "--only", "ci", *_settings(folder, "ci"))
    return str(answer["images"][0]["reference"])


def with_code(contract: Contract, folder: Path, images: Mapping[str, str]) -> str:
    """The image of the actor with a user's code over it, as a change of that code makes it.

    Returns:
        The reference by digest.
    """
    (folder / "mine.py").write_text(f"made = {time.time_ns()}\n")
    spec = {"run": "mine", "env": {"id": "CartPole-v1"}, "code": {"path": "."}, "images": dict(images)}
    (folder / "spec.yaml").write_text(json.dumps(spec))
    answer = _push(contract, str(folder / "spec.yaml"), "--only", "actor")
    return str(answer["overlay"]["images"]["actor"])


def relabelled(image: str) -> str:
    """The same image with another label, as a build of other code of ours makes it; needs buildah.

    Returns:
        The reference by digest.
    """
    made = _buildah("from", "--tls-verify=false", image)
    name = f"{image.partition('@')[0]}:relabelled-{time.time_ns()}"
    _buildah("config", "--label", f"made={time.time_ns()}", made)
    _buildah("commit", "--rm", made, name)
    with tempfile.NamedTemporaryFile("r") as digest:
        _buildah("push", "--tls-verify=false", "--digestfile", digest.name, name)
        return f"{image.partition('@')[0]}@{digest.read().strip()}"


def _buildah(*words: str) -> str:
    env = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    done = subprocess.run(["buildah", *words], env=env, stdin=subprocess.DEVNULL, text=True, capture_output=True)
    assert done.returncode == 0, f"buildah {' '.join(words)}: {done.stderr[-2000:]}"
    return done.stdout.strip()


def with_code_of(contract: Contract, spec: Path, overlay: Path, images: Mapping[str, str]) -> None:
    """The code of a spec over these images; `overlay` names the result, for `rlctl up SPEC OVERLAY`."""
    overlay.write_text(f"{OVERLAY_MARK}\n{json.dumps({'images': dict(images)})}\n")
    _push(contract, str(spec), str(overlay), "--write", str(overlay))


def _push(contract: Contract, *more: str) -> Any:
    command = [
        sys.executable, "-m", "rlctl", "image", "push", *more, "--registry", contract.registry, "--no-tls-verify",
        "--network", "host", "-o", "json",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "BUILDAH_ISOLATION": "chroot"}, stdin=subprocess.DEVNULL, text=True,
        capture_output=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[-6000:]}\n{done.stdout[-2000:]}"
    return json.loads(done.stdout)


def _settings(folder: Path, *names: str) -> Iterator[str]:
    """Options for a build of these images on this machine."""
    for volume in as_volumes(pip_settings(), folder):
        yield from ("--volume", volume)
    if _is_offline():
        yield from (part for name in names for part in ("--base", f"{name}={OFFLINE_BASE}"))


def _is_offline() -> bool:
    """Whether the base of our Dockerfiles has to be named, because the usual one is out of reach."""
    if shutil.which("buildah") is None:
        return False
    there = subprocess.run(["buildah", "inspect", OFFLINE_BASE], capture_output=True, stdin=subprocess.DEVNULL)
    return there.returncode == 0


def pip_settings() -> dict[str, str]:
    """Settings of pip on this machine, where it has any: pip in a build has to be told as well."""
    wanted = ("cert", "index-url", "extra-index-url", "find-links", "trusted-host", "default-timeout")
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, stdin=subprocess.DEVNULL
    ).stdout
    found: dict[str, str] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in wanted:  # what the environment says stands first, and counts
            found.setdefault(name, value.strip("'\""))
    return found


def as_volumes(settings: Mapping[str, str], folder: Path) -> Iterator[str]:
    """Bind mounts for a build: a pip.conf, and the folders and files that it names."""
    if not settings:
        return
    values = {key: value.replace("\\n", " ") for key, value in settings.items()}  # as pip lists several
    file = folder / "pip.conf"
    file.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in values.items()))
    yield f"{file}:/etc/pip.conf:ro"
    named = [word for value in values.values() for word in value.split()]
    # an index leads to files beside it
    paths = [Path(word.removeprefix("file://")).parent if "://" in word else Path(word) for word in named]
    for path in dict.fromkeys(path for path in paths if path.is_absolute() and path.exists()):
        yield f"{path}:{path}:ro"
