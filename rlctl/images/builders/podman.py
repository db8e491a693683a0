"""podman: builds as buildah does, and knows the same options."""

from __future__ import annotations

from rlctl.images.builders.buildah import Buildah


class Podman(Buildah):
    """A `Builder`."""

    name = "podman"
    look: tuple[str, ...] = ("podman", "image", "inspect", "--format", "{{.Id}}")
