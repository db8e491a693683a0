"""Adapters of a project: its repository, builder and target, as the configuration names them."""

from __future__ import annotations

from rlctl_ci.builders.append import Append
from rlctl_ci.builders.folder import Folder
from rlctl_ci.builders.none import NoBuilder
from rlctl_ci.builders.program import Look, Program
from rlctl_ci.config.settings import Project
from rlctl_ci.core.build_attempt import Adapters, ArtifactBuilder
from rlctl_ci.core.service import Service
from rlctl_ci.deploy.child import Child
from rlctl_ci.git.repository import Git


def adapters_of(project: Project, service: Service) -> Adapters:
    """Adapters of a project."""
    child = Child(project)
    return Adapters(Git(project, service.folder / "git"), artifact_builder(project, service, child.look), child)


def artifact_builder(project: Project, service: Service, look: Look) -> ArtifactBuilder:
    """Builder of a project; on a local target every builder but `none` stores code in folders."""
    if project.builder == "none":
        return NoBuilder()
    if project.target == "local":
        return Folder(service.folder / "code")
    if project.builder == "append":
        return Append(look)
    return Program(project.builder, service.folder / project.builder, look)
