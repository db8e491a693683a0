"""Count of the requests that a fake API server was asked."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Requests:
    """Requests by method."""

    by_method: dict[str, int] = field(default_factory=dict)

    def count(self, method: str) -> None:
        self.by_method[method] = self.by_method.get(method, 0) + 1

    @property
    def writes(self) -> int:
        """Requests that could change something, dry runs included."""
        return sum(count for method, count in self.by_method.items() if method != "GET")

    @property
    def total(self) -> int:
        return sum(self.by_method.values())
