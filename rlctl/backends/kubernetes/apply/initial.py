"""Upload of a run's initial policy, in chunks, to its manager, which has the volume."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rlctl.backends.base import Applied, RunState
from rlctl.backends.files import POLICY_FILES, reported
from rlctl.backends.kubernetes.api.refusals import FORWARD_RIGHT, GO_ON, lasting
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.backends.manager_api import persist
from rlctl.errors import BackendUnreachable, Left, PartlyApplied, RlctlError, WorkloadFailed

PIECE_BYTES: Final = 2**18
PATIENCE_S: Final = 600.0
"""Seconds that the manager has to answer: its image may have to be pulled."""
_LOOK_S: Final = 2.0
_TROUBLE_S: Final = 15.0
"""Seconds between two checks why it does not run."""


def upload(session: Session, state: RunState, initial: Callable[[], Path]) -> Iterator[Applied]:
    """Upload the initial policy to the manager unless it has it.

    Args:
        initial: returns the folder of the policy; not called if the manager has it.

    Raises:
        PartlyApplied: the manager does not answer, or refuses; the same command resumes.
        WorkloadFailed: it cannot run.
        RlctlError: raised by `initial`.
    """
    if "policy.json" in _await_files(session, state):
        return
    folder, digests = initial(), {}
    with reported(f"cannot read {folder}"):
        files = {name: (folder / name).read_bytes() for name in POLICY_FILES if (folder / name).is_file()}
    try:
        for name, data in files.items():
            digests[name] = hashlib.sha256(data).hexdigest()
            for offset in range(0, len(data), PIECE_BYTES):
                piece = base64.b64encode(data[offset : offset + PIECE_BYTES]).decode()
                _post(session, {"name": name, "offset": offset, "data": piece})
        _post(session, {"whole": digests})
    except RlctlError as error:
        raise PartlyApplied(
            f"the policy that the run begins with did not reach it: {error.message}", hint=GO_ON
        ) from error
    session.written += 1
    size = sum(map(len, files.values()))
    yield Applied("init", "created", f"{size:,} bytes brought to the manager")


def _await_files(session: Session, state: RunState) -> dict[str, object]:
    """Files of the policy that the manager has, once it answers."""
    patience, looked = session.patience(PATIENCE_S), session.clock()
    while True:
        try:
            found = session.ask("/files?folder=init", None).get("files")
            return found if isinstance(found, dict) else {}
        except BackendUnreachable as error:
            if _lasts(error):
                raise PartlyApplied(
                    f"the policy that the run begins with cannot be brought to it: {error.message}",
                    hint=FORWARD_RIGHT,
                ) from error
        if session.clock() - looked >= _TROUBLE_S:
            looked = session.clock()
            for process in session.trouble(state):
                if process.role == "manager" and process.permanent:
                    raise WorkloadFailed(
                        f"the manager, which takes the policy that the run begins with, cannot run: {process.reason}",
                        hint=process.next or "rlctl status says more.",
                    )
        if session.leave():
            raise Left(
                f"the policy that run {state.run} begins with has not been brought to its manager yet", hint=GO_ON
            )
        if patience.over(f"the manager of run {state.run}, which takes the policy that it begins with"):
            raise PartlyApplied(
                f"the manager of run {state.run}, which takes the policy that it begins with, has not answered for "
                f"{PATIENCE_S:g} s",
                hint=GO_ON,
            )
        session.sleep(_LOOK_S)


def _post(session: Session, body: dict[str, object]) -> None:
    persist(lambda: session.ask("/init", body), session.sleep, lasts=_lasts)


def _lasts(error: BackendUnreachable) -> bool:
    return any(isinstance(one, RlctlError) and lasting(one) for one in (error, error.__cause__))
