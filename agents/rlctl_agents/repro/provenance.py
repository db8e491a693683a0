"""Code, packages and machine of this process: causes for which a replayed episode may differ."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from rlctl_agents.repro.record import Provenance
from rlctl_agents.runtime.process import IMAGE

_NOT_THEIRS = ("rlctl", "rlctl_agents", "rlctl_ci", "__main__", "__mp_main__")
_MOST = 1000


def provenance() -> Provenance:
    """Provenance of this process: code and distributions of the modules that are loaded."""
    names = {name.partition(".")[0] for name in sys.modules} | {"rlctl"}
    packages = {"python": platform.python_version()}
    for package, distributions in _distributions().items():
        if package in names:
            for distribution in distributions:
                try:
                    packages[distribution.lower()] = importlib.metadata.version(distribution)
                except importlib.metadata.PackageNotFoundError:  # it is being installed anew just now
                    continue
    return Provenance(code_digests(), packages, os.environ.get(IMAGE, ""), machine())


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Distributions of every installed package; the search takes a tenth of a second."""
    return importlib.metadata.packages_distributions()


def code_digests() -> dict[str, str]:
    """First 16 hex digits of the sha256 of each loaded module of the user's own: no package's, and none of ours."""
    installed = tuple(os.path.realpath(folder) + os.sep for folder in (sys.prefix, sys.base_prefix, sys.exec_prefix))
    found: dict[str, str] = {}
    for name, module in sorted(sys.modules.copy().items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name.partition(".")[0] in _NOT_THEIRS or len(found) == _MOST:
            continue
        path = os.path.realpath(file)
        if path.startswith(installed) or "-packages" + os.sep in path:
            continue
        try:
            found[name] = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
        except OSError:
            continue
    return found


def machine() -> str:
    """Architecture, kernel and processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return ", ".join(part for part in (platform.machine(), platform.system(), model) if part)


def differences(then: Provenance, now: Provenance) -> list[str]:
    """Differences in words, the likeliest to matter first. Only packages that are installed now are compared."""
    code = [f"module {name}" for name, digest in then.code.items() if now.code.get(name, digest) != digest]
    found = [f"{', '.join(code)} {'has' if len(code) == 1 else 'have'} changed since"] if code else []
    if then.image != now.image and then.image:
        found.append(f"the image was {then.image}")
    for name, version in sorted(then.packages.items()):
        here = now.packages.get(name, version)
        if here != version:
            found.append(f"{name} was {version}, here it is {here}")
    if then.machine != now.machine:
        found.append(f"the machine was {then.machine}, here it is {now.machine}")
    return found
