"""What a deployment does to a target, by the same library as `rlctl up`. Runs in the process of `__main__`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlctl.backends.base import Applied, Backend, RunState
from rlctl.backends.kubernetes.refusals import lasting
from rlctl.errors import BackendUnreachable, Conflict, Locked, PartlyApplied, RlctlError, SpecError
from rlctl.images.reference import Reference
from rlctl.plan import Change, Document, Plan, changes, make
from rlctl.render import interpreter
from rlctl.spec.schema import Spec
from rlctl_ci.builders.bases import Bases
from rlctl_ci.builders.source import listed, spec_at
from rlctl_ci.config import Project
from rlctl_ci.deploy import health, stranger
from rlctl_ci.deploy.policy import Reach, reach
from rlctl_ci.errors import BuildStopped, Transient

_LOCKED_FOR_S: Final = 60.0
Say = Callable[[str], object]


@dataclass
class Act:
    """Args:
    project: whose run.
    backend: of it.
    say: told every line.
    redeployed: called by `verify` once every replica runs the new code and has reported.
    """

    project: Project
    backend: Backend
    say: Say
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    redeployed: Callable[[], object] = lambda: None

    def look(self) -> dict[str, Any] | None:
        """Revision, throughput and images of a live run; None when it does not run."""
        state = self.backend.find(self.project.run)
        if state is None or state.phase != "running":
            return None
        status = health.report(self.backend, state.run)
        baseline = {"rows_per_s": health.throughput(status)}
        return {"revision": state.revision, "baseline": baseline, "images": _images(state.spec)}

    def apply(self, source: Path, artifacts: Mapping[str, str]) -> int:
        """Make the run what the commit says.

        Raises:
            BuildStopped: it cannot become that, or the target refuses; nothing was changed.
            Transient: somebody holds the run for too long, or the target went away in the middle.
            RlctlError: something else; perhaps half of it was changed.
        """
        try:
            spec, aim = self._aim(source, artifacts)
        except (Conflict, SpecError) as error:
            raise _stopped(error) from error
        self._applied(lambda: self.backend.apply(aim.plan, aim.documents, spec.model_dump(mode="json")))
        after = self.backend.find(self.project.run)
        assert after is not None
        return after.revision

    def verify(self, baseline: Mapping[str, Any]) -> str:
        """
        Raises:
            RlctlError: the run is not well.
        """
        rules, run = self.project.verify, self.project.run
        seen = health.await_ready(self.backend, run, rules.ready_within_s, clock=self.clock, sleep=self.sleep)
        if seen.finished:
            return "the run has finished"
        self.say("every replica runs the new code and has reported")
        self.redeployed()
        return health.watch(
            self.backend, run, watch_s=rules.watch_s, before_per_s=float(baseline.get("rows_per_s") or 0.0),
            least=rules.min_throughput, clock=self.clock, sleep=self.sleep,
        )  # fmt: skip

    def undo(self, revision: int) -> int:
        """The documents of a revision again, and a run that is ready.

        Always, because half a deployment has changed objects and not the number of the revision; what is as it was is
        not written.
        """
        state = self.backend.find(self.project.run)
        if state is None:
            raise Conflict(f"run {self.project.run} is gone")
        self._applied(lambda: self.backend.rollback(self.project.run, revision))
        health.await_ready(
            self.backend, state.run, self.project.verify.ready_within_s, clock=self.clock, sleep=self.sleep
        )
        after = self.backend.find(state.run)
        assert after is not None
        return after.revision

    def _aim(self, source: Path, artifacts: Mapping[str, str]) -> tuple[Spec, Reach]:
        """What is to be applied; nothing is changed yet."""
        state = self.backend.find(self.project.run)
        if state is None or state.phase != "running":
            raise BuildStopped("ended", f"run {self.project.run} has ended meanwhile")
        spec, base = self._spec(source, artifacts, state)
        allowed = Bases(self.project, lambda: _images(state.spec))
        for image in {*_images(spec.model_dump(mode="json"))} - {*artifacts.values()}:
            allowed.check(Reference.parse(image))
        found = self._changes(state, spec)
        for change in {change.path: change for change in found}.values():
            self.say(f"{change.action}: {change.why}")
        place = self.backend.place(state.run, spec.storage.path)
        before = self.backend.documents(state.run)
        python = interpreter(before) or sys.executable  # the run's, which need not be ours
        plan, documents = self._rendered(spec, base, place, python)
        aim = reach(spec, plan, documents, before, state.hashes)
        stranger.refuse(aim.plan, spec, aim.documents, before)
        for role, policy in aim.held.items():
            self.say(f"{role} keeps what it runs: on_push is {policy}")
        for check in self.backend.preflight(aim.plan, aim.documents) if python == sys.executable else ():
            if check.verdict == "problem":
                raise BuildStopped("preflight", f"{check.name}: {check.text}", hint=check.next)
        return spec, aim

    def _spec(self, source: Path, artifacts: Mapping[str, str], state: RunState) -> tuple[Spec, Path]:
        """The spec of the commit with what was built, and with what a run never changes."""
        images = {name: image for name, image in artifacts.items() if name != "code"}
        sets = [*self.project.sets, *(f"images.{name}={image}" for name, image in images.items())]
        spec, base = spec_at(self.project.model_copy(update={"sets": sets}), source)
        update: dict[str, Any] = {}
        if spec.code is not None and "code" in artifacts:
            update["code"] = spec.code.model_copy(update={"path": artifacts["code"], "requirements": None})
        elif spec.code is not None and images:
            # where the code lies in the checkout says nothing: the image holds it, and its digest tells changes
            before = (state.spec.get("code") or {}).get("path") or "."
            update["code"] = spec.code.model_copy(update={"path": before})
        where = (state.spec.get("storage") or {}).get("path")
        update["storage"] = spec.storage.model_copy(update={"path": where})
        return spec.model_copy(update=update), base

    def _changes(self, state: RunState, spec: Spec) -> list[Change]:
        from pydantic import ValidationError

        try:
            found = changes(Spec.model_validate(dict(state.spec)), spec)
        except ValidationError as error:
            raise BuildStopped(
                "release",
                f"run {state.run} was started by rlctl {state.rlctl_version}, whose spec this one cannot read",
            ) from error
        refused = list(dict.fromkeys(change.why for change in found if change.action == "refuse"))
        if refused:
            raise BuildStopped("refused", f"this run cannot become that: {'; '.join(refused)}")
        return found

    def _rendered(self, spec: Spec, base: Path, place: Any, python: str) -> tuple[Plan, list[Document]]:
        plan = make(spec, uid=place.uid, base=base)
        if plan.target == "kubernetes":
            from rlctl.render.kubernetes import documents as for_cluster

            return plan, for_cluster(plan, spec)
        from rlctl.render import documents as for_machine

        return plan, for_machine(plan, layout=place.layout, sockets=place.sockets, python=python)

    def _applied(self, verb: Callable[[], Iterable[Applied]]) -> None:
        """A verb of the target; a person's command that holds the run is waited for."""
        deadline, changed = self.clock() + _LOCKED_FOR_S, False
        while True:
            try:
                for one in verb():
                    if one.what != "unchanged":
                        changed = True
                        self.say(f"{one.what} {one.object}{f': {one.why}' if one.why else ''}")
                return
            except Locked as error:
                if self.clock() >= deadline:
                    raise Transient("partial" if changed else "locked", error.message, hint=error.hint) from error
                self.sleep(1.0)
            except (Conflict, SpecError) as error:
                raise (PartlyApplied(error.message, hint=error.hint) if changed else _stopped(error)) from error
            except PartlyApplied as error:
                cause = error.__cause__
                if isinstance(cause, BackendUnreachable) and not lasting(cause):
                    raise Transient("partial", error.message, hint=error.hint) from error
                raise


def _images(spec: Mapping[str, Any]) -> list[str]:
    return [image for image in (spec.get("images") or {}).values() if isinstance(image, str)]


def _stopped(error: Conflict | SpecError) -> BuildStopped:
    why = listed(error) if isinstance(error, SpecError) else error.message
    return BuildStopped(error.reason, why, hint=error.hint)


def backend_of(project: Project) -> Backend:
    """The target of a project, as its configuration says; the current context of anybody does not count."""
    if project.target == "kubernetes":
        from rlctl.backends.kubernetes.backend import KubernetesBackend

        cluster = KubernetesBackend(project.context, project.namespace)
        cluster.take_over = frozenset({project.run})  # somebody else has started it, and the configuration names it
        made: Backend = cluster
    else:
        from rlctl.backends.local import LocalBackend

        made = LocalBackend()
    made.waiting = lambda text: None
    return made


def handle(
    request: Mapping[str, Any], say: Say, backend: Backend | None = None,
    redeployed: Callable[[], object] = lambda: None,
) -> dict[str, Any]:  # fmt: skip
    """One request of the parent process; the answer is plain data."""
    project = Project.model_validate(request["project"])
    try:
        act = Act(project, backend or backend_of(project), say, redeployed=redeployed)
        verb = request["verb"]
        if verb == "look":
            return {"result": act.look()}
        if verb == "apply":
            return {"result": act.apply(Path(request["source"]), request["artifacts"])}
        if verb == "verify":
            return {"result": act.verify(request["baseline"])}
        assert verb == "undo", verb
        return {"result": act.undo(request["revision"])}
    except RlctlError as error:
        details = [str(line) for line in getattr(error, "details", ())]
        kind = "stopped" if isinstance(error, BuildStopped) else error.reason
        kind = "transient" if isinstance(error, Transient) else kind
        return {
            "error": {"kind": kind, "code": getattr(error, "code", error.reason), "message": error.message,
                      "hint": error.hint, "details": details}
        }  # fmt: skip
