"""What acts upon the world for a project: its repository, its builder, its target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlctl_ci.builders import buildah, docker
from rlctl_ci.builders.append import Append
from rlctl_ci.builders.folder import Folder
from rlctl_ci.builders.none import Nothing
from rlctl_ci.config import Project
from rlctl_ci.deploy.child import Child
from rlctl_ci.git import Git
from rlctl_ci.service import Service


def of(project: Project, service: Service) -> Mapping[str, Any]:
    """Fetcher, maker and deployer."""
    return {
        "fetcher": Git(project, service.folder / "git"),
        "maker": maker(project, service),
        "deployer": Child(project),
    }


def maker(project: Project, service: Service) -> Any:
    """The builder of a project; on one machine code lies in folders, whatever the builder."""
    if project.builder == "none":
        return Nothing()
    if project.target == "local":
        return Folder(service.folder / "code")
    if project.builder == "append":
        return Append()
    home = service.folder / project.builder
    return buildah.make(home) if project.builder == "buildah" else docker.make(home)
