"""Deployments in a process of their own: templates of a repository are rendered there, and it can be killed."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rlctl.errors import BackendUnreachable, PartlyApplied, WorkloadFailed
from rlctl_ci.config.settings import Project
from rlctl_ci.core.build_attempt import Job, Live
from rlctl_ci.core.errors import BuildStopped, Transient
from rlctl_ci.sandbox.programs import Bounds, Programs
from rlctl_ci.store.records import Artifact, Deploy

_LONGEST_ANSWER: Final = 1 << 20
"""Bytes of the answer, at most: one line, with the last log lines of a role that died."""
_SLACK_S: Final = 1200.0
"""Seconds beyond the limits of the project: for 10,000 actors, and for rendering a commit's templates. Only a child
that hangs takes them all."""


class DeploymentFailed(WorkloadFailed):
    """Failure of the run or of its deployment; `details` holds the last log lines of a process."""

    details: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Child:
    """`Deployer` that works in a child process.

    Args:
        project: project of the run.
        environ: of the child: that of this process, because it has to reach the same target.
    """

    project: Project
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def look(self, job: Job) -> Live | None:
        found = self._ask(job, {"verb": "look"})
        return None if found is None else Live(found["revision"], found["baseline"], tuple(found["images"]))

    def apply(self, job: Job, deploy: Deploy, source: Path, artifacts: Sequence[Artifact]) -> int:
        made = {one.name: one.reference for one in artifacts}
        asked = {"verb": "apply", "step": _step(job, deploy), "source": str(source), "artifacts": made}
        return int(self._ask(job, asked))

    def verify(self, job: Job, deploy: Deploy, redeployed: Callable[[], object]) -> str:
        return str(self._ask(job, {"verb": "verify", "baseline": dict(deploy.baseline)}, redeployed))

    def undo(self, job: Job, deploy: Deploy) -> int:
        try:
            return int(self._ask(job, {"verb": "undo", "step": _step(job, deploy), "baseline": dict(deploy.baseline)}))
        except OSError as error:  # no room: the rollback stays due
            raise BackendUnreachable(error.strerror or str(error)) from error

    def _ask(self, job: Job, request: Mapping[str, Any], redeployed: Callable[[], object] = lambda: None) -> Any:
        rules = self.project.verify
        # no limit of memory: a supervisor and all its roles would inherit it; `memory` bounds what a commit can ask for
        bounds = Bounds(rules.ready_within_s + rules.watch_s + _SLACK_S)
        # a supervisor that the child starts again belongs to the run, and outlives the child
        run = Programs(self.environ, bounds, job.stop, Path("/"), whole=False, longest=_LONGEST_ANSWER)
        answer: dict[str, Any] = {}

        def hear(line: str) -> None:
            try:
                told = json.loads(line)
            except ValueError:
                told = None
            if not isinstance(told, dict):
                (job.output or job.say)(line)
            elif "say" in told:
                job.say(str(told["say"]))
            elif "redeployed" in told:
                redeployed()
            else:
                answer.update(told)

        data = json.dumps({**request, "project": self.project.model_dump(mode="json")}).encode()
        try:
            ended = run([sys.executable, "-m", "rlctl_ci.deploy"], hear, data=data)
        except BuildStopped as error:  # out of time, and something may have been changed
            raise PartlyApplied(error.message) from error
        if "error" in answer:
            raise _error(answer["error"])
        if "result" not in answer and ended.code not in range(129):  # its keeper has died, or it has
            raise Transient("killed", f"the deployment was killed (exit {ended.code}); another attempt goes on")
        if "result" not in answer:
            raise PartlyApplied(f"the deployment ended without an answer (exit {ended.code})")
        return answer["result"]


def _step(job: Job, deploy: Deploy) -> dict[str, Any]:
    build = job.build
    note = f"build {build.id} of {build.project}: {build.sha[:12]}"
    uid = str(deploy.baseline.get("uid", ""))
    return {"before": deploy.before_revision, "made": deploy.revision, "note": note, "uid": uid}


def _error(told: Mapping[str, Any]) -> Exception:
    message, hint = str(told["message"]), str(told["hint"])
    if told["full"]:
        return OSError(errno.ENOSPC, message)
    if told["kind"] == "stopped":
        return BuildStopped(str(told["code"]), message, hint=hint)
    if told["kind"] == "transient":
        return Transient(str(told["code"]), message, hint=hint)
    if told["kind"] in ("unreachable", "unreadable"):
        return BackendUnreachable(message, hint=hint)
    found = DeploymentFailed(message, hint=hint)
    found.details = [str(line) for line in told["details"]]
    return found
