"""One virtual environment per peer, made once and kept: no two of their pins agree."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.shared.host import REPOSITORY

REQUIREMENTS = Path(__file__).parent / "requirements"
INSTALL_S = 1800.0
TORCHBEAST = "https://github.com/facebookresearch/torchbeast/archive/0af07b051a2176a8f9fd20c36891ba2bba6bae68.tar.gz"
CLEANRL = "https://github.com/vwxyzjn/cleanrl/archive/fe8d8a03c41a7ef5b523e2e354bd01c363e786bb.tar.gz"
PUFFERLIB = "pufferlib==3.0.0"


class Missing(Exception):
    """A peer cannot be had on this machine; the reason in one line."""


def cache() -> Path:
    """$RLCTL_BENCH_CACHE, else ~/.cache/rlctl-bench."""
    chosen = os.environ.get("RLCTL_BENCH_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "rlctl-bench"


def ready(peer: str) -> Path:
    """The environment of a peer, made if it is not there.

    Raises:
        Missing: it cannot be installed.
    """
    wanted = (REQUIREMENTS / f"{peer}.txt").read_text()
    folder = cache() / f"{peer}-{stamp(wanted)}"
    if (folder / ".ready").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        install(peer, folder)
    except subprocess.CalledProcessError as error:
        raise Missing(why(folder / "install.log", error)) from error
    except (OSError, subprocess.TimeoutExpired, tarfile.TarError) as error:
        raise Missing(f"{type(error).__name__}: {error}"[:300]) from error
    (folder / ".ready").touch()
    return folder


def stamp(requirements: str) -> str:
    """Digest of the requirements, the interpreter and the further sources."""
    parts = (requirements, torch_pin(), platform.python_version(), platform.machine(), TORCHBEAST, CLEANRL, PUFFERLIB)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:10]


def torch_pin() -> str:
    """The torch that rlctl is measured with: every peer gets the same."""
    found = re.search(r"^torch==\S+", (REPOSITORY / "requirements.lock").read_text(), re.MULTILINE)
    assert found is not None
    return found[0]


def install(peer: str, folder: Path) -> None:
    """torch first, so that nothing replaces it; then the requirements, then sources that no package index has."""
    _call(folder, [sys.executable, "-m", "venv", str(folder)])
    _pip(folder, "install", torch_pin())
    _pip(folder, "install", torch_pin(), "-r", str(REQUIREMENTS / f"{peer}.txt"))
    if peer in FURTHER:
        FURTHER[peer](folder)


def python(folder: Path) -> str:
    """The interpreter of an environment."""
    return str(folder / "bin" / "python")


def why(log: Path, error: subprocess.CalledProcessError) -> str:
    """The last line of pip's log that says error, else the last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if re.search(r"(?i)error|no matching|not found", line)]
    return f"{(told or lines or ['no output'])[-1][:250]} (exit {error.returncode}; {log})"


def without(program: str, path: str) -> str:
    """PATH less the folders that hold a program.

    Example:
        `without("nvcc", "/usr/bin:/nothing/here")` is the same again where neither holds nvcc.
    """
    return os.pathsep.join(folder for folder in path.split(os.pathsep) if not (Path(folder) / program).exists())


def _pufferlib(folder: Path) -> None:
    """Its sdist, without its games but CartPole: the build of all of them fetches libraries from elsewhere."""
    # no games, and no CUDA kernels: an nvcc on PATH that fits no toolkit stops its build. Without games its setup.py
    # reads a name that it has not set
    shim = folder / "shim"
    shim.mkdir(exist_ok=True)
    (shim / "sitecustomize.py").write_text("import builtins\n\nbuiltins.c_extension_paths = []\n")
    env = {"NO_OCEAN": "1", "PATH": without("nvcc", os.environ.get("PATH", "")), "PYTHONPATH": str(shim)}
    _pip(folder, "install", "--no-build-isolation", "--no-deps", PUFFERLIB, env=env)
    sdist = folder / "sdist"
    _pip(
        folder, "download", "--no-build-isolation", "--no-deps", "--no-binary", ":all:", "-d", str(sdist), PUFFERLIB,
        env=env,
    )  # fmt: skip
    with tarfile.open(next(sdist.glob("pufferlib-*.tar.gz"))) as archive:
        archive.extractall(sdist, filter="data")
    source = next(path for path in sdist.glob("pufferlib-*") if path.is_dir())
    raylib = source / "raylib-5.5_linux_amd64"
    told = subprocess.run(
        [python(folder), "-c",
         "import numpy, sysconfig, pathlib, pufferlib; print(numpy.get_include()); "
         "print(sysconfig.get_paths()['include']); print(pathlib.Path(pufferlib.__file__).parent)"],
        cwd=folder,  # importing it leaves a link there
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    numpy_include, python_include, package = told.stdout.split("\n")[:3]
    target = Path(package) / "ocean" / "cartpole"
    target.mkdir(parents=True, exist_ok=True)
    (target.parent / "__init__.py").touch()
    (target / "__init__.py").touch()
    shutil.copy(source / "pufferlib" / "ocean" / "cartpole" / "cartpole.py", target)
    _call(folder, [
        "cc", "-O2", "-flto", "-fPIC", "-shared", "-DNPY_NO_DEPRECATED_API=NPY_1_7_API_VERSION", "-DPLATFORM_DESKTOP",
        f"-I{numpy_include}", f"-I{python_include}", f"-I{raylib / 'include'}",
        str(source / "pufferlib" / "ocean" / "cartpole" / "binding.c"), str(raylib / "lib" / "libraylib.a"),
        "-o", str(target / "binding.so"), "-lm", "-lpthread", "-ldl", "-fwrapv",
    ])  # fmt: skip


def _source(folder: Path, variable: str, url: str) -> None:
    """Its source: a checkout of the pinned commit that the environment variable names, or from its home."""
    given = os.environ.get(variable)
    if given:
        shutil.copytree(given, folder / "source", ignore=shutil.ignore_patterns(".git"))
        return
    archive = folder / "source.tar.gz"
    with urllib.request.urlopen(url, timeout=60) as answer:
        archive.write_bytes(answer.read())
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "unpacked", filter="data")
    (found,) = (folder / "unpacked").iterdir()
    shutil.move(found, folder / "source")


def _monobeast(folder: Path) -> None:
    _source(folder, "RLCTL_BENCH_TORCHBEAST", TORCHBEAST)


def _cleanrl(folder: Path) -> None:
    _source(folder, "RLCTL_BENCH_CLEANRL", CLEANRL)


FURTHER: Mapping[str, Callable[[Path], None]] = {
    "pufferlib": _pufferlib, "monobeast": _monobeast, "cleanrl": _cleanrl, "buffers": _cleanrl,
}  # fmt: skip


def _pip(folder: Path, verb: str, *words: str, env: Mapping[str, str] | None = None) -> None:
    _call(folder, [python(folder), "-m", "pip", verb, "--disable-pip-version-check", *words], env)


def _call(folder: Path, command: list[str], env: Mapping[str, str] | None = None) -> None:
    """With its output in the log.

    Raises:
        CalledProcessError, TimeoutExpired.
    """
    with (folder / "install.log").open("ab") as log:
        subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=True, timeout=INSTALL_S,
            env={**os.environ, **(env or {})}, cwd=folder,
        )  # fmt: skip
