"""What acts upon the world for a project: its repository, its builder, its target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlctl_ci.builders import buildah, docker
from rlctl_ci.builders.append import Append
from rlctl_ci.builders.folder import Folder
from rlctl_ci.builders.none import Nothing
from rlctl_ci.builders.program import Look
from rlctl_ci.config import Project
from rlctl_ci.deploy.child import Child
from rlctl_ci.git import Git
from rlctl_ci.service import Service


def of(project: Project, service: Service) -> Mapping[str, Any]:
    """Fetcher, maker and deployer."""
    child = Child(project)
    return {
        "fetcher": Git(project, service.folder / "git"),
        "maker": maker(project, service, child.look),
        "deployer": child,
    }


def maker(project: Project, service: Service, look: Look) -> Any:
    """The builder of a project; on one machine code lies in folders, whatever the builder."""
    if project.builder == "none":
        return Nothing()
    if project.target == "local":
        return Folder(service.folder / "code")
    if project.builder == "append":
        return Append(look)
    home = service.folder / project.builder
    return buildah.make(home, look) if project.builder == "buildah" else docker.make(home, look)
