"""A run that trains on real pods, and what a test asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlctl.spec.names import COMPONENT, selector
from tests.cluster.support.commands import Done
from tests.cluster.support.people import Person
from tests.cluster.support.specs import spec
from tests.cluster.support.witness import Object, Witness, is_ready


@dataclass(frozen=True)
class Training:
    """One run of one person."""

    who: Person
    witness: Witness
    run: str
    file: str

    def up(self, *more: str, code: int = 0) -> Done:
        return self.who("up", self.file, "-d", *more, code=code)

    def status(self) -> dict[str, Any]:
        return self.who.status(self.run)

    def log(self, role: str) -> str:
        """Log records of a role, as they are printed."""
        return self.who("logs", role, "--run", self.run).stdout

    def steps(self) -> int:
        """Rows that the learner has consumed."""
        return int(self.status()["totals"]["consumed_steps"])

    def goes_on(self, more: int = 3000) -> None:
        """The learner consumes so many steps more."""
        self.who("wait", self.run, "--for", f"consumed_steps={self.steps() + more}", "--timeout", "3m", timeout_s=240)

    def pods(self, role: str = "") -> dict[str, Object]:
        """Those that are not on their way out, by name."""
        labels = selector(self.run, role)
        found = self.witness.list("Pod", self.who.namespace, labels)
        return {pod["metadata"]["name"]: pod for pod in found if not pod["metadata"].get("deletionTimestamp")}

    def uids(self, *roles: str) -> dict[str, str]:
        """Pod -> its uid: another uid is another pod."""
        return {name: pod["metadata"]["uid"] for role in roles for name, pod in self.pods(role).items()}

    def until(
        self, role: str, count: int, *, other_than: Mapping[str, str] | None = None, timeout_s: float = 120
    ) -> None:
        """So many pods of the role are ready, none of them one of these, and no other is left."""
        old = set((other_than or {}).values())

        def there(pods: dict[str, Object]) -> bool:
            living = list(pods.values())
            return len(living) == count and all(is_ready(pod) and pod["metadata"]["uid"] not in old for pod in living)

        self.witness.until(
            "Pod", self.who.namespace, there, what=f"{count} {role}s of {self.run}", timeout_s=timeout_s,
            labels=f"{selector(self.run)},{COMPONENT}={role}",
        )  # fmt: skip


def start(
    who: Person, witness: Witness, images: Mapping[str, str], *, run: str = "train", steps: int = 2000, actors: int = 1,
    **more: Any,
) -> Training:  # fmt: skip
    """Start a run without an end, and let it learn from some steps."""
    file = who.writes(f"{run}.yaml", spec(run, actors=actors, images=dict(images), **more))
    training = Training(who, witness, run, file)
    who("up", file, "--wait", "--timeout", "4m", timeout_s=300)
    who("wait", run, "--for", f"consumed_steps={steps}", "--timeout", "2m", timeout_s=180)
    return training
