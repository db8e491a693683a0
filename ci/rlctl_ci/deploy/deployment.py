"""Deployment to a target, by the same library as `rlctl up`. Runs in the process of `__main__`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlctl.backends.base import Applied, Backend, RunState, Say
from rlctl.backends.kubernetes.api.refusals import lasting
from rlctl.backends.revisions import images_of, rolled_back_to
from rlctl.changes import Change, changes
from rlctl.errors import (
    BackendUnreachable,
    Conflict,
    Locked,
    PartlyApplied,
    RlctlError,
    SpecError,
    TimedOut,
    WorkloadFailed,
)
from rlctl.image_names import Reference
from rlctl.images.registry.pinning import pin
from rlctl.plan import make
from rlctl.render import for_target, interpreter
from rlctl.spec.schema import Spec
from rlctl_ci.builders.bases import Bases
from rlctl_ci.builders.registry import registry_of
from rlctl_ci.builders.source import listed, spec_at
from rlctl_ci.config.settings import Project
from rlctl_ci.core.errors import BuildStopped, Transient, no_room
from rlctl_ci.deploy import health, push_rights
from rlctl_ci.deploy.memory import bounded
from rlctl_ci.deploy.policy import DeployScope, reach

_LOCKED_FOR_S: Final = 60.0
_SECONDS_A_REPLICA: Final = 0.1
"""Seconds added to `verify.ready_within_s` for each replica: a cluster replaces some 20 pods a second, and half that
rate is tolerated."""


@dataclass(frozen=True, slots=True)
class Step:
    """One deployment among the revisions of its run."""

    before: int
    made: int | None  # None: not known, because a kill or a target that was away came in between
    note: str  # of the revision that it makes: no other one has the same
    uid: str = ""  # of the run; "": not known


@dataclass
class RunDeployment:
    """Deployment of one build to the run of its project, step by step.

    Args:
        project: project of the run.
        backend: target of the run.
        say: called with every line of the log.
        redeployed: called by `verify` once every replica runs the new code and has reported.
    """

    project: Project
    backend: Backend
    say: Say
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    redeployed: Callable[[], object] = lambda: None

    def look(self) -> dict[str, Any] | None:
        """Revision, images and baseline of a live run; None when it does not run.

        Raises:
            BuildStopped: there is no such run.
        """
        state = self.backend.find(self.project.run)
        if state is None:
            raise BuildStopped("run", f"there is no run {self.project.run}", hint="`run:` of ci.yaml; rlctl up")
        if state.phase != "running":
            return None
        status = health.report(self.backend, state.run)
        baseline = {
            "steps_per_s": health.throughput(status),
            "replicas": dict(state.replicas),
            "missing": health.missing(self.backend, state.run),
            "uid": state.uid,
            "cluster": self._cluster(),
        }
        return {"revision": state.revision, "baseline": baseline, "images": [*images_of(state.spec).values()]}

    def _cluster(self) -> list[str]:
        """Context and namespace as they are resolved now: the next look may find another context current."""
        if self.backend.name != "kubernetes":
            return []
        return [self.backend.context, self.backend.namespace]

    def apply(self, step: Step, source: Path, artifacts: Mapping[str, str]) -> int:
        """Apply the spec of a commit to the run; returns its revision.

        Raises:
            BuildStopped: the run cannot become that, or the target refuses; nothing was changed.
            Transient: another command holds the run for long or changed it just now, or target or registry cannot be
                asked, with a code of UNTOUCHED; or the target became unreachable midway.
            RlctlError: any other failure; some objects may have been changed.
        """
        try:
            spec, aim = self._aim(step, source, artifacts)
        except (Conflict, SpecError) as error:
            raise _stopped(error) from error
        except BackendUnreachable as error:
            raise Transient("away", error.message, hint=error.hint) from error
        stored = spec.model_dump(mode="json")
        self._applied(
            lambda: self.backend.apply(aim.plan, aim.documents, stored, note=step.note), lambda: self._live(step)
        )
        after = self.backend.find(self.project.run)
        assert after is not None
        return after.revision

    def verify(self, baseline: Mapping[str, Any]) -> str:
        """Wait until the run is ready with the new code, then watch it; returns a summary.

        Raises:
            RlctlError: the run is not ready in time, or fails or slows down while it is watched.
        """
        rules, run = self.project.verify, self.project.run
        try:
            seen = self._await_ready()
        except (WorkloadFailed, TimedOut) as error:
            if missing := baseline.get("missing"):
                error.message += f" (it was not ready before the push either: {missing})"
            raise
        if seen.finished:
            return "the run has finished"
        self.say("every replica runs the new code and has reported")
        self.redeployed()
        return health.watch(
            self.backend, run, watch_s=rules.watch_s, before_per_s=self._expected(baseline),
            least=rules.min_throughput, clock=self.clock, sleep=self.sleep,
        )  # fmt: skip

    def _expected(self, baseline: Mapping[str, Any]) -> float:
        """Expected agent steps a second: as many as before, fewer in proportion where there are fewer actors."""
        per_s = float(baseline.get("steps_per_s") or 0.0)
        state, were = self.backend.find(self.project.run), int(baseline.get("replicas", {}).get("actor", 0))
        are = were if state is None else state.replicas.get("actor", 0)
        if are >= were:
            return per_s
        less = per_s * are / were
        self.say(f"{are} actors, and {were} before: of {per_s:.0f} steps/s then, {less:.0f} are expected now")
        return less

    def undo(self, step: Step, baseline: Mapping[str, Any]) -> int:
        """Roll back to the revision before, and wait until the run is ready, if it was. Returns the new revision.

        Also where no revision records the deployment, because a partial one has changed objects without a new revision;
        objects that are unchanged are not written.

        Raises:
            BuildStopped: the run is not as this deployment has left it, and is not changed. The code is `ended` where
                it does not run any more, as a person has asked or as its spec says.
            Transient: as `apply`.
            RlctlError: it does not become ready again, or some objects may have been changed.
        """
        run = self.project.run
        state = self._as_left(step)
        self._applied(lambda: self.backend.rollback(run, step.before), lambda: self._as_left(step))
        after = self._rescaled(state, baseline)
        if not baseline.get("missing"):
            self._await_ready()
        return after.revision

    def _await_ready(self) -> health.RunHealth:
        run = self.project.run
        state = self.backend.find(run)
        replicas = 0 if state is None else sum(state.replicas.values())
        within_s = self.project.verify.ready_within_s + _SECONDS_A_REPLICA * replicas
        return health.await_ready(self.backend, run, within_s, clock=self.clock, sleep=self.sleep)

    def _as_left(self, step: Step) -> RunState:
        """State of the run, which has to be as this deployment has left it.

        Raises:
            BuildStopped: it has ended, is another run, or was changed by others.
        """
        run = self.project.run
        state = self.backend.find(run)
        if state is None or state.phase in ("stopped", "finished"):
            raise BuildStopped("ended", f"run {run} is {'gone' if state is None else state.phase} by now, and stays so")
        if step.uid and state.uid != step.uid:
            raise BuildStopped("ended", f"run {run} is another one by now (uid {state.uid[:8]}), and stays as it is")
        if meanwhile := self._meanwhile(state, step):
            hint = f"rlctl history {run}, then rlctl rollback NUMBER --run {run}"
            raise BuildStopped("changed", f"{meanwhile}, which stays", hint=hint)
        return state

    def _live(self, step: Step) -> RunState:
        """State of the run that is to be changed.

        Raises:
            BuildStopped: it has ended, or is another one.
            Transient: it was changed just now.
        """
        state = self.backend.find(self.project.run)
        if state is None or state.phase != "running":
            raise BuildStopped("ended", f"run {self.project.run} has ended meanwhile")
        if step.uid and state.uid != step.uid:
            raise BuildStopped("ended", f"run {state.run} is another one by now (uid {state.uid[:8]})")
        if meanwhile := self._meanwhile(state, step):
            raise Transient("locked", f"{meanwhile}: it was changed just now")
        return state

    def _meanwhile(self, state: RunState, step: Step) -> str:
        """Changes that others have made to the run since the deployment, in words; empty: there are none."""
        at = state.revision
        if at in (step.before, step.made):
            return ""
        kept = {one.number: one for one in self.backend.revisions(state.run)}
        while at not in (step.before, step.made):
            found = kept.get(at)
            if found is not None and found.note == step.note:
                break
            back = None if found is None else rolled_back_to(found.note)
            if back is None:
                newest = kept.get(state.revision)
                who = "" if newest is None else f" by {newest.by}{newest.note and f' ({newest.note})'}"
                ours = f"{step.before} to {step.made}" if step.made else f"on from {step.before}"
                return f"run {state.run} is at revision {state.revision}{who}, and this deployment went {ours}"
            at = back
        return ""

    def _rescaled(self, before: RunState, baseline: Mapping[str, Any]) -> RunState:
        """Restore the replicas that `rlctl scale` had set, where a spec with other numbers came and was rolled back."""
        after = self.backend.find(before.run)
        assert after is not None
        wanted: dict[str, int] = {}
        for role, count in baseline.get("replicas", {}).items():
            reset = before.spec_replicas.get(role) != after.spec_replicas.get(role)
            # a rollback that was killed midway has restored the revision, but perhaps not the replicas
            if role in after.replicas and (reset or before.revision == after.revision):
                scaled = before.replicas.get(role) != before.spec_replicas.get(role)
                wanted[role] = before.replicas[role] if scaled else count
        wanted = {role: count for role, count in wanted.items() if after.replicas[role] != count}
        if wanted:
            try:
                self._applied(lambda: self.backend.scale(before.run, wanted))
            except BuildStopped as error:  # the rollback before it has changed the run
                raise PartlyApplied(error.message, hint=error.hint) from error
        return after

    def _aim(self, step: Step, source: Path, artifacts: Mapping[str, str]) -> tuple[Spec, DeployScope]:
        """Spec and documents to apply; nothing is changed yet."""
        state = self._live(step)
        spec, base = self._spec(source, artifacts, state)
        allowed = Bases(self.project, lambda: images_of(state.spec).values())
        for image in {*images_of(spec.model_dump()).values()} - {*artifacts.values()}:
            allowed.check(Reference.parse(image))
        if spec.target == "kubernetes":
            spec = self._pinned(spec, state, allowed)
        found = self._changes(state, spec)
        if not any(one.startswith("trackers.mlflow.uri=") for one in self.project.sets):
            push_rights.refuse_trackers(spec, state.spec)
        if not any(one.startswith("storage.size=") for one in self.project.sets):
            push_rights.refuse_growth(spec, state.spec)
        for change in {change.path: change for change in found}.values():
            self.say(f"{change.action}: {change.why}")
        place = self.backend.place(state.run, spec.storage.path)
        before = self.backend.documents(state.run)
        python = interpreter(before) or sys.executable  # the run's, which need not be ours
        plan = make(spec, uid=place.uid, base=base)
        push_rights.refuse_templates(plan, before)
        with bounded():
            aim = reach(spec, plan, for_target(plan, spec, place, python), before, state.hashes)
            push_rights.refuse(aim.plan, spec, aim.documents, before)
        for role, policy in aim.held.items():
            self.say(f"{role} keeps what it runs: on_push is {policy}")
        for check in self.backend.preflight(aim.plan, aim.documents) if python == sys.executable else ():
            if check.verdict == "problem":
                raise BuildStopped("preflight", f"{check.name}: {check.text}", hint=check.next)
        return spec, aim

    def _spec(self, source: Path, artifacts: Mapping[str, str], state: RunState) -> tuple[Spec, Path]:
        """Spec of the commit with the artifacts of its build, and with the fields that a run never changes."""
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
        elif spec.code is not None and spec.target == "local":
            raise BuildStopped(
                "spec", "the code of the commit lies in a folder of this build, which is removed after it",
                hint="another builder than none, or a spec without `code`",
            )  # fmt: skip
        where = (state.spec.get("storage") or {}).get("path")
        update["storage"] = spec.storage.model_copy(update={"path": where})
        return spec.model_copy(update=update), base

    def _pinned(self, spec: Spec, state: RunState, allowed: Bases) -> Spec:
        """Spec with images pinned to digests, as by `rlctl up`: no push changes what a tag is.

        Raises:
            BuildStopped: the image of the roles that run no code of a commit holds some.
            SpecError: a registry has no such image.
            BackendUnreachable: a registry does not say what a tag is, or what an image was laid over.
        """
        given = images_of(spec.model_dump())
        holds = {name: str(allowed.held(Reference.parse(image))) for name, image in given.items()}
        found = pin(given, holds, lambda _: registry_of(self.project)).images
        for name, image in given.items():
            if not Reference.parse(image).digest:
                self.say(f"images.{name}: {image} is {Reference.parse(found[name]).digest}")
        before = images_of(state.spec).get("core")
        core = Reference.parse(found["core"])
        if before is None or core.by_digest() != Reference.parse(before).by_digest():  # else a person has applied it
            allowed.check_core(core)
        return spec.model_copy(update={"images": spec.images.model_copy(update=dict(found))})

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

    def _applied(
        self, verb: Callable[[], Iterable[Applied]], still: Callable[[], object] = lambda: None
    ) -> None:  # fmt: skip
        """Run a verb of the target; waits for a person's command that holds the run.

        Args:
            still: raises if that command has left a run for which the verb is not meant.
        """
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
                if not changed:
                    still()
            except (Conflict, SpecError) as error:
                raise (PartlyApplied(error.message, hint=error.hint) if changed else _stopped(error)) from error
            except PartlyApplied as error:
                cause = error.__cause__
                if isinstance(cause, BackendUnreachable) and not lasting(cause):
                    raise Transient("partial", error.message, hint=error.hint) from error
                raise


def _stopped(error: Conflict | SpecError) -> BuildStopped:
    why = listed(error) if isinstance(error, SpecError) else error.message
    return BuildStopped(error.reason, why, hint=error.hint)


def backend_of(project: Project) -> Backend:
    """The target of a project, as its configuration says; the current context of a kubeconfig does not count."""
    if project.target == "kubernetes":
        from rlctl.backends.kubernetes.backend import KubernetesBackend

        cluster = KubernetesBackend(project.context, project.namespace)
        cluster.take_over = frozenset({project.run})  # another user has started it, and the configuration names it
        return cluster
    from rlctl.backends.local import LocalBackend

    return LocalBackend()


def handle(
    request: Mapping[str, Any], say: Say, backend: Backend | None = None,
    redeployed: Callable[[], object] = lambda: None,
) -> dict[str, Any]:  # fmt: skip
    """Handle one request of the parent process; the reply is plain data."""
    project = Project.model_validate(request["project"])
    try:
        act = RunDeployment(project, backend or backend_of(project), say, redeployed=redeployed)
        verb = request["verb"]
        if verb == "look":
            return {"result": act.look()}
        if verb == "apply":
            return {"result": act.apply(Step(**request["step"]), Path(request["source"]), request["artifacts"])}
        if verb == "verify":
            return {"result": act.verify(request["baseline"])}
        assert verb == "undo", verb
        return {"result": act.undo(Step(**request["step"]), request["baseline"])}
    except RlctlError as error:
        details = [str(line) for line in getattr(error, "details", ())]
        kind = "stopped" if isinstance(error, BuildStopped) else error.reason
        kind = "transient" if isinstance(error, Transient) else kind
        return {
            "error": {"kind": kind, "code": getattr(error, "code", error.reason), "message": error.message,
                      "hint": error.hint, "details": details, "full": no_room(error) is not None}
        }  # fmt: skip
