"""Images that a commit may name: those of repositories that its run uses already, and those that `ci.yaml` allows.

The service asks the registry of a base with its own logins from its own network, and the author of a push has neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from rlctl.image_names import LOCAL, Reference
from rlctl.images.code import BASE_LABEL
from rlctl.images.registry.pinning import held
from rlctl_ci.builders.registry import registry_of
from rlctl_ci.config.settings import Project
from rlctl_ci.core.errors import BuildStopped


@dataclass(frozen=True, slots=True)
class Bases:
    """Base images that a project may build on.

    Args:
        project: its `registry`, `bases` and `sets` are allowed.
        running: images of the run as it is; asked for only where those do not allow one.
    """

    project: Project
    running: Callable[[], Collection[str]]

    def check(self, image: Reference) -> None:
        """Require that an image may be used, before anything of it is fetched.

        Raises:
            BuildStopped: the image is of a repository that is not allowed.
            BackendUnreachable: the registry of the run's own images does not say what their bases are.
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

    def held(self, image: Reference) -> Reference:
        """Pin a tag to the digest that the run uses, as `rlctl up` does: no push changes what a tag is.

        Returns:
            The same image where it has a digest, or where the run uses none of this tag.

        Raises:
            BackendUnreachable: as `check`.
        """
        if image.digest:
            return image
        return next((known for known in self._known() if held(image, known)), image)

    def check_core(self, image: Reference) -> None:
        """Require that manager, modelpool and TensorBoard may run from an image; after `check`.

        Raises:
            BuildStopped: it holds code, or does not exist.
            BackendUnreachable: its registry does not answer.
        """
        below = registry_of(self.project).label(image.asked, BASE_LABEL) if image.registry != LOCAL else None
        if below is None:
            raise BuildStopped("base", f"images.core: there is no {image}", hint="push it, or name another")
        if below:
            raise BuildStopped(
                "rights",
                f"images.core: {image} is {below} with code laid over it, and code runs in actor, evaluator and learner"
                " alone",
                hint="name the one that `rlctl image push` has made of rlctl itself",
            )

    def _used(self) -> Iterator[str]:
        """Repositories that the run uses."""
        yield from map(_repository, self._known())

    def _known(self) -> Iterator[Reference]:
        """Images of the run, and their bases: a push replaces a base by an image with code over it."""
        images = [Reference.parse(image) for image in self.running()]
        yield from images
        registry = registry_of(self.project)
        for image in images:
            below = registry.label(image, BASE_LABEL) if image.remote else None
            if below:
                yield Reference.parse(below)


def configured(project: Project) -> list[str]:
    """Registries and repositories that ci.yaml names: host[:port][/path]."""
    given = (text.partition("=") for text in project.sets)
    named = (_repository(Reference.parse(value)) for key, _, value in given if key.startswith("images."))
    return [one for one in (project.registry, *project.bases, *named) if one]


def _repository(image: Reference) -> str:
    return f"{image.registry}/{image.repository}"
