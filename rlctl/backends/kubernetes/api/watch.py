"""Watch of the objects of a kind: a list, then only changes, and a new list when the watch has expired."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rlctl.backends.kubernetes.api.interface import Api, ApiError, Expired, Object

TICK_S: Final = 10.0
_TRIES: Final = 5
"""Broken watches in a row before we give up; the list between two of them has retries of its own."""
_ALL: Final = 1_000_000
"""More objects than exist: a bounded list never comes from a cache. A caller decides by the present state: an old list
shows a rollout as done before it has begun, and a pod that was just created as gone."""


def follow(
    api: Api, kind: str, *, labels: str = "", fields: str = "", tick_s: float = TICK_S
) -> Iterator[dict[str, Object]]:
    """Objects by name: at once, after every change, and at least every `tick_s`; never ends by itself.

    Raises:
        ApiError: the server does not answer, or refuses.
    """
    broken = 0
    while True:
        page = api.list(kind, labels=labels, fields=fields, most=_ALL)
        known = {thing["metadata"]["name"]: thing for thing in page.items}
        yield known
        version = page.resource_version
        try:
            while True:
                for event in api.watch(
                    kind, labels=labels, fields=fields, resource_version=version, timeout_s=tick_s
                ):  # fmt: skip
                    broken = 0
                    version = event.object["metadata"]["resourceVersion"]
                    if event.what == "BOOKMARK":
                        continue
                    name = event.object["metadata"]["name"]
                    if event.what == "DELETED":
                        known.pop(name, None)
                    else:
                        known[name] = event.object
                    yield known
                yield known
        except Expired:
            continue
        except ApiError as error:
            broken += 1
            if broken >= _TRIES or (error.status and error.status < 500 and error.status != 429):
                raise
