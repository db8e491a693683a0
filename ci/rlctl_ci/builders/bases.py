"""Which images a commit may name: those of repositories that its run uses already, and those that `ci.yaml` allows.

The service asks the registry of a base with its own logins from its own network, and whoever pushes has neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from rlctl.images.code import BASE_LABEL
from rlctl.images.reference import Reference
from rlctl_ci.builders.registry import reader
from rlctl_ci.config import Project
from rlctl_ci.errors import BuildStopped


@dataclass(frozen=True, slots=True)
class Bases:
    """Args:
    project: its `registry`, `bases` and `sets` are allowed.
    running: images of the run as it is; asked for only where those do not allow one.
    """

    project: Project
    running: Callable[[], Collection[str]]

    def check(self, image: Reference) -> None:
        """Before anything of it is fetched.

        Raises:
            BuildStopped: the image is of a repository that is not allowed.
            BackendUnreachable: the registry of the run's own images does not say what those were laid over.
        """
        name = _repository(image)
        if (
            not any(name == one or name.startswith(f"{one}/") for one in configured(self.project))
            and name not in self._used()
        ):
            raise BuildStopped(
                "base",
                f"{image}: run {self.project.run} uses no image of {name.strip('/')}, and ci.yaml allows none",
                hint=f"bases: [{name.strip('/')}] in ci.yaml, or a person goes over to it: rlctl up",
            )

    def _used(self) -> Iterator[str]:
        """Repositories of the run's images, and of what those were laid over: a push replaces the one by the other."""
        images = [Reference.parse(image) for image in self.running()]
        yield from map(_repository, images)
        registry = reader(self.project)
        for image in images:
            manifest = registry.manifest(image) if image.remote else None
            below = registry.labels(image, manifest).get(BASE_LABEL) if manifest is not None else None
            if below:
                yield _repository(Reference.parse(below))


def configured(project: Project) -> list[str]:
    """Registries and repositories that ci.yaml names: host[:port][/path]."""
    given = (text.partition("=") for text in project.sets)
    named = (_repository(Reference.parse(value)) for key, _, value in given if key.startswith("images."))
    return [one for one in (project.registry, *project.bases, *named) if one]


def _repository(image: Reference) -> str:
    return f"{image.registry}/{image.repository}"
