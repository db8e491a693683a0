"""Compressed sizes of images, from all registries at once, within a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from rlctl.errors import RlctlError
from rlctl.image_names import Reference, loopback
from rlctl.images.registry.client import Registry

DEADLINE_S: Final = 3.0
"""Seconds for all registries together: a figure that only warns is not waited for longer."""
_MOST: Final = 16
"""Images queried, at most."""


def sizes(
    images: Collection[str],
    credentials: Callable[[str], tuple[str, str] | None] = lambda _: None,
    deadline_s: float = DEADLINE_S,
) -> Mapping[str, int]:
    """Bytes by image, compressed as they are pulled; without images whose registry has not answered in time.

    A registry on the loopback may speak plain HTTP.

    Args:
        credentials: user and password for a registry, or None.
    """
    found: dict[str, int] = {}

    def ask(image: str) -> None:
        try:
            reference = Reference.parse(image)
            if reference.remote:
                near = loopback(reference.registry)
                registry = Registry(verify=not near, credentials=credentials, timeout_s=deadline_s)
                size = registry.size(reference)
                if size:
                    found[image] = size
        except (RlctlError, OSError, ValueError, LookupError, TypeError, AttributeError):
            return  # nothing that a registry says, or does not, is a reason to stop

    threads = [threading.Thread(target=ask, args=(image,), daemon=True) for image in list(images)[:_MOST]]
    for thread in threads:
        thread.start()
    end = time.monotonic() + deadline_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(found)  # a copy: late answers must not change it
