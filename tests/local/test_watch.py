"""The listener's side of supervisor's event protocol."""

from __future__ import annotations

import os

from rlctl.backends.local.watch import Events


def event(name: str, payload: str) -> bytes:
    return f"ver:3.0 server:x serial:1 pool:watch poolserial:1 eventname:{name} len:{len(payload)}\n{payload}".encode()


def test_events_are_answered_and_those_that_ended_are_named() -> None:
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    events = Events(ours_in, ours_out)
    assert os.read(theirs_in, 100) == b"READY\n"
    both = event("PROCESS_STATE_RUNNING", "processname:a groupname:a from_state:STARTING pid:5")
    both += event("PROCESS_STATE_EXITED", "processname:a groupname:a from_state:RUNNING expected:0 pid:7")
    os.write(theirs_out, both[:100])
    assert events.wait(1.0) == []
    os.write(theirs_out, both[100:])
    assert events.wait(1.0) == [7]
    assert os.read(theirs_in, 100) == b"RESULT 2\nOKREADY\n" * 2
    assert events.wait(0.0) == []
    os.close(theirs_out)
    assert events.wait(1.0) is None
    for handle in (theirs_in, ours_out, ours_in):
        os.close(handle)
