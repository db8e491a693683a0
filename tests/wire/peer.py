"""One end of an experience channel as a process: `python -m tests.wire.peer send|receive ADDRESS BOOT`.

Runs until its standard input closes, then prints what it saw as one line of JSON. A receiver says before
that whom it has heard.
"""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path

import msgspec

from rlctl_agents.wire.sockets import Wire
from tests.wire.pair import STEPS, make_receiver, make_sender, offer

ROWS = 2 * STEPS
BUDGET_ROWS = 40 * ROWS


def asked_to_stop() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) / 256


def send(address: str, boot: str) -> None:
    sender = make_sender(Wire(), address, boot=boot, on_policy=False)
    print("ready", flush=True)
    worst_s = 0.0
    while not asked_to_stop():
        began = time.monotonic()
        offer(sender)
        sender.poll(0.0)
        worst_s = max(worst_s, time.monotonic() - began)
        time.sleep(0.002)
    flushed = sender.flush(30.0)
    ledgers = msgspec.to_builtins(sender.ledgers)
    print(json.dumps({"worst_s": worst_s, "mib": resident_mib(), "flushed": flushed, "ledgers": ledgers}), flush=True)


def receive(address: str, boot: str) -> None:
    receiver = make_receiver(Wire(), address, boot=boot, budget_rows=BUDGET_ROWS)
    print("ready", flush=True)
    seen: set[tuple[str, int]] = set()
    known: set[str] = set()
    twice = most = 0
    while not asked_to_stop():
        for segment in receiver.poll(0.02):
            key = segment.header.boot, segment.header.sequence
            twice += key in seen
            if key[0] not in known:
                known.add(key[0])
                print(f"heard {key[0]}", flush=True)
            seen.add(key)
            most = max(most, receiver.outstanding)
            receiver.settle(segment, "consumed")
    accounts = msgspec.to_builtins(receiver.accounts)
    print(json.dumps({"twice": twice, "most": most, "mib": resident_mib(), "accounts": accounts}), flush=True)


if __name__ == "__main__":
    {"send": send, "receive": receive}[sys.argv[1]](*sys.argv[2:])
