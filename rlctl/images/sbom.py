"""List of the packages of an image, as a CycloneDX document; runs inside a build, with nothing but Python.

    python sbom.py TO

lists what is installed where it runs: Python and its packages, those of the base too, the system, and its packages by
dpkg's records. Equal content gives an equal file: it has no timestamp and no serial number.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import sys
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

FILE: Final = "opt/requirements/sbom.cdx.json"
"""Place of the list in an image."""
KIND: Final = "application/vnd.cyclonedx+json"
_PACKAGES: Final = (
    "usr/lib/python3*/dist-packages", "usr/local/lib/python3*/*-packages", "opt/*/lib/python3*/site-packages",
)  # fmt: skip
"""Folders of packages below the root: of the base and of its environments, whichever Python runs this."""


def document(components: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A document of CycloneDX 1.6 over components, each once."""
    by_reference = {str(one["bom-ref"]): dict(one) for one in components}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": [by_reference[reference] for reference in sorted(by_reference)],
    }


def component(kind: str, name: str, version: str, purl: str) -> dict[str, Any]:
    """Component of a bill of materials.

    Args:
        purl: package URL, which names the package type; "" if there is none.
    """
    found = {"type": kind, "bom-ref": purl or f"{kind}:{name}@{version}", "name": name, "version": version}
    return {**found, "purl": purl} if purl else found


def of_image(root: Path, python: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Components below a root: the system, its packages, and Python's.

    Args:
        root: root of the file system.
        python: folders of packages besides the usual ones.
    """
    release = _os_release(root)
    system, version = release.get("ID", "linux"), release.get("VERSION_ID", "")
    yield component("operating-system", system, version, "")
    for package in _debian(root):
        quoted = urllib.parse.quote(package["Version"], safe="")
        about = urllib.parse.urlencode({"arch": package.get("Architecture", ""), "distro": f"{system}-{version}"})
        purl = f"pkg:deb/{system}/{urllib.parse.quote(package['Package'])}@{quoted}?{about}"
        yield component("library", package["Package"], package["Version"], purl)
    folders = {folder.resolve() for pattern in _PACKAGES for folder in root.glob(pattern)}
    for found in importlib.metadata.distributions(path=[str(one) for one in sorted({*folders, *python})]):
        if found.metadata["Name"] and found.version:
            name = re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower()
            purl = f"pkg:pypi/{name}@{urllib.parse.quote(found.version, safe='')}"
            yield component("library", found.metadata["Name"], found.version, purl)


def _debian(root: Path) -> Iterator[dict[str, str]]:
    """Installed Debian packages; an image without dpkg has a file for each of them."""
    status = root / "var/lib/dpkg/status"
    each = sorted((root / "var/lib/dpkg/status.d").glob("*"))
    for path in [status, *(path for path in each if path.suffix != ".md5sums")]:
        if not path.is_file():
            continue
        for paragraph in path.read_text(encoding="utf-8", errors="replace").split("\n\n"):
            fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if re.match(r"[A-Za-z-]+: ", line))
            there = path != status or fields.get("Status", "").endswith(" installed")
            if there and "Package" in fields and "Version" in fields:
                yield fields


def _os_release(root: Path) -> dict[str, str]:
    for path in (root / "etc/os-release", root / "usr/lib/os-release"):
        if path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            return {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in lines)}
    return {}


def main(arguments: list[str]) -> int:
    """Write the document of the image that this runs in."""
    version = platform.python_version()
    python = component("application", "python", version, f"pkg:generic/python@{version}")
    folders = [Path(folder) for folder in sys.path[1:] if Path(folder).is_dir()]
    made = document([python, *of_image(Path("/"), folders)])
    Path(arguments[0]).write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
