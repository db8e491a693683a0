"""Reader pod: hands out the files of a run that is taken down, for as long as one command lasts.

It reads the volume as the run's manager did, with nothing else of the run: no keys, no token, no connection but the
port that the API server forwards to its loopback. A killed command leaves it behind; then it ends by its deadline, and
the next reader of the run removes it, or `down` with the volumes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from rlctl.backends.base import RunState
from rlctl.backends.kubernetes.access import control, listing
from rlctl.backends.kubernetes.api.interface import ApiError, Key, Object, in_context, key_of, kubectl
from rlctl.backends.kubernetes.api.refusals import FORWARD_RIGHT, in_words, lasting
from rlctl.backends.kubernetes.diagnose.causes.base import age_s
from rlctl.backends.kubernetes.run_state import inventory
from rlctl.backends.kubernetes.run_state.desired_state import DesiredState
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.backends.kubernetes.run_state.volume_pod import folder_of, manager_of, pod_of
from rlctl.backends.stored_files import FilesOfManager
from rlctl.errors import BackendUnreachable, Conflict, RlctlError, TimedOut
from rlctl.spec import names

COMPONENT: Final = "reader"
DEADLINE_S: Final = 3600
"""Seconds that a reader pod may live: the cluster ends it then."""
PATIENCE_S: Final = 600.0
"""Seconds that the pod has to answer: its image may have to be pulled, or a node be added."""
_LOOK_S: Final = 1.0
_TROUBLE_S: Final = 5.0
"""Seconds between two checks why it does not run."""
_MOST: Final = 500


@contextmanager
def opened(session: Session, state: RunState, wanted: DesiredState) -> Iterator[FilesOfManager]:
    """Files of a run, through a pod that lives as long as the block.

    Args:
        wanted: the run as it was applied last.

    Raises:
        Conflict: the run has no manager to copy the pod from.
        BackendUnreachable: the pod may not be created, or cannot run; the message has the reason.
        TimedOut: it does not answer in time.
    """
    documents = pod_and_policy(wanted, f"{wanted.run}-{COMPONENT}-{secrets.token_hex(4)}")
    if documents is None:
        raise Conflict(f"run {state.run} has no manager, after which a pod for its volume could be made")
    pod, policy = documents
    name, who = pod["metadata"]["name"], f"pod {pod['metadata']['name']}, which reads the volume of run {state.run},"
    _sweep(session, wanted)
    session.note(f"run {state.run} is taken down: pod {name} reads its volume while this command needs it")

    def ask(path: str) -> Any:
        return control.ask_pod(session.api, name, who, "GET", path)

    made: list[Key] = []
    try:
        for document in (policy, pod):  # policy first: at no moment may another process reach the pod
            made.insert(0, key_of(document))
            try:
                _create(session, document)
            except RlctlError as error:
                if isinstance(error.__cause__, ApiError) and lasting(error.__cause__):  # refused, so it is not there
                    made.pop(0)
                raise
        _await(session, state, name, who, lambda: ask("/files?folder=models"))
        yield FilesOfManager(ask, who)
    finally:
        _remove(session, made)


def pod_and_policy(wanted: DesiredState, name: str) -> tuple[Object, Object] | None:
    """Manifests of the pod and of a NetworkPolicy without any connection; None: the run has no manager to copy."""
    if (manager := manager_of(wanted)) is None:
        return None
    limited = (manager["containers"][0].get("resources") or {}).get("limits") or {}
    cpu = {"cpu": limited["cpu"]} if "cpu" in limited else {}  # from a patch, where a quota demands it
    pod = pod_of(
        wanted, manager, name, COMPONENT, ["python", "-m", "rlctl_agents", "files"],
        read_only=True,
        container={
            "args": [f"--run-dir={folder_of(wanted)}", f"--port={names.PORTS['control']}", f"--run={wanted.run}"],
            "imagePullPolicy": "IfNotPresent",  # by digest: a present image is the right one
            "env": [
                {"name": "PYTHONUNBUFFERED", "value": "1"},
                {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
                {"name": "PYTHONPATH", "value": "/nonexistent"},  # no user code, whatever the image holds
            ],
            "resources": {
                "requests": {"cpu": "50m", "memory": "128Mi", "ephemeral-storage": "16Mi"},
                "limits": {"memory": "256Mi", "ephemeral-storage": "64Mi", **cpu},
            },
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
        },
        activeDeadlineSeconds=DEADLINE_S,
        terminationGracePeriodSeconds=5,
    )  # fmt: skip
    labels = names.labels(wanted.run, COMPONENT)
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": labels, "annotations": pod["metadata"]["annotations"]},
        "spec": {
            "podSelector": {"matchLabels": {names.INSTANCE: wanted.run, names.COMPONENT: COMPONENT}},
            "policyTypes": ["Ingress", "Egress"],
        },
    }
    return pod, policy


def left(session: Session, run: str) -> list[Object]:
    """Existing pods and policies of readers, of commands that run and of those that were killed.

    Raises:
        ApiError: the server does not answer.
    """
    found: list[Object] = []
    for kind in ("Pod", "NetworkPolicy"):
        try:
            found += session.api.list(kind, labels=names.selector(run, COMPONENT), most=_MOST).items
        except ApiError as error:
            if error.status != 403:
                raise
    return found


def _sweep(session: Session, wanted: DesiredState) -> None:
    """Remove what killed commands left: pods that have ended, and objects older than any may get."""
    with suppress(ApiError):
        found = [one for one in left(session, wanted.run) if inventory.is_ours(one, wanted.run, wanted.uid)]
        over = {key_of(one).name for one in found if _is_over(session, one)}
        _remove(session, [key_of(one) for one in found if key_of(one).name in over])


def _is_over(session: Session, thing: Object) -> bool:
    ended = (thing.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return ended or age_s(thing["metadata"].get("creationTimestamp"), session.now()) > 2 * DEADLINE_S


def _create(session: Session, document: Object) -> None:
    try:
        session.api.create(document)
    except ApiError as error:
        raise in_words(error, "create", key_of(document), session.api, written=False) from error


def _await(session: Session, state: RunState, name: str, who: str, answer: Callable[[], object]) -> None:
    """Wait until the pod answers.

    Args:
        who: name of the pod, for messages.

    Raises:
        BackendUnreachable: it cannot run, is gone, or may not be reached.
        TimedOut: it does not answer within PATIENCE_S.
    """
    key, patience = Key("Pod", name), session.patience(PATIENCE_S)
    looked, why = session.clock() - _TROUBLE_S, ""
    while True:
        pod = session.api.get(key)
        if pod is None:
            raise BackendUnreachable(f"{who} was removed from outside", hint="the same command makes another")
        events = f"{kubectl(session.api)} get events --field-selector involvedObject.name={name}"
        if _runs(pod):
            try:
                answer()
            except BackendUnreachable as error:
                if isinstance(error.__cause__, ApiError) and lasting(error.__cause__):
                    raise BackendUnreachable(
                        error.message, hint=error.hint or FORWARD_RIGHT, objects=(str(key),)
                    ) from error
                why = f": {error.message.removeprefix(who).strip()}"
            else:
                return
        elif session.clock() - looked >= _TROUBLE_S or _is_over(session, pod):
            looked, cause = session.clock(), listing.cause_of(session.api, state, pod, session.now())
            why = "" if cause is None else f": {cause.text}"
            if cause is not None and (cause.permanent or _is_over(session, pod)):
                gone = name in cause.next or cause.next.startswith("rlctl logs")  # it names the pod, which is removed
                hint = events if gone or not cause.next else in_context(session.api, cause.next)
                raise BackendUnreachable(f"{who} does not run{why}", hint=hint, objects=(str(key),))
        if patience.over(f"{who.removesuffix(',')}{why}"):
            raise TimedOut(f"{who} has not answered for {PATIENCE_S:g} s{why}", hint=events, objects=(str(key),))
        session.sleep(_LOOK_S)


def _runs(pod: Object) -> bool:
    """Whether a container of a pod runs, even while the pod is being deleted."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any("running" in (status.get("state") or {}) for status in statuses)


def _remove(session: Session, keys: Iterable[Key]) -> None:
    """Remove objects, or note that they stay: that is no failure of the command."""
    for key in keys:
        try:
            session.api.delete(key)
        except RlctlError as error:
            until = f" until its deadline, {DEADLINE_S // 60} min from its start" if key.kind == "Pod" else ""
            session.note(f"{key} stays{until}, and the next command that reads this run removes it: {error.message}")
