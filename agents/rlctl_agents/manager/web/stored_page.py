"""`python -m rlctl_agents page`: the status page of a run that is over, from its folder. Writes nothing there, and
listens on a socket that is for this user alone.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rlctl.spec.layout import Layout
from rlctl_agents.manager.checkpoints.manifests import Manifests
from rlctl_agents.manager.lifecycle.finished import read_end
from rlctl_agents.manager.status.history import RunHistory
from rlctl_agents.manager.web.status_page import MOST_LINES, StatusSnapshot, log_line, pages
from rlctl_agents.runtime import logs
from rlctl_agents.runtime.health import ProbeListener, Pulse
from rlctl_agents.runtime.process import USERS_FAULT, new_boot, serve_until_told
from rlctl_agents.types.control import to_plain

NAME = "page"
LOG_FILES, LOG_BYTES = 20, 16 * 1024
"""Newest log files that are read, at most, and bytes from the end of each."""

log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM; returns the exit code.

    Args:
        arguments: arguments after the word `page`.
    """
    parser = argparse.ArgumentParser(f"rlctl_agents {NAME}", description="Show the status page of a run that is over.")
    parser.add_argument("--root", type=Path, required=True, help="folder of the run")
    parser.add_argument("--socket", type=Path, required=True, metavar="PATH", help="a Unix socket to listen on")
    parser.add_argument("--run", default="", help="name of the run, for log lines")
    options = parser.parse_args(list(arguments))
    logs.set_up(logs.Identity(options.run, NAME, f"{NAME}/0", new_boot()))
    layout = Layout(options.root)
    try:
        shown = stored(layout)
    except (OSError, ValueError) as error:
        log.error("the last figures of the run cannot be read: %s", error)
        return USERS_FAULT
    lines = newest_lines(layout.logs)
    found = pages(lambda: shown, lines=lambda: lines, episodes=layout.episodes)
    where = f"unix:{options.socket}"
    return serve_until_told(options.root, f"at {where}", lambda: ProbeListener(where, Pulse(), lambda: b"", found))


def stored(layout: Layout) -> StatusSnapshot:
    """Status, generations and history of a run, as its manager stored them.

    Raises:
        OSError, ValueError: its last status cannot be read.
    """
    status = msgspec.json.decode(layout.status_file.read_bytes(), type=dict[str, Any])
    if status.get("phase") != "finished":  # a run that failed on a cluster is in a state of its own only there
        status["phase"] = "finished" if read_end(layout) is not None else "over"
    return StatusSnapshot.of(status, stored_generations(layout, status), history=RunHistory(layout.results).view())


def stored_generations(layout: Layout, status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Generations of all policies of a run, as its status document names them."""
    manifests = Manifests(layout.checkpoints)
    return [to_plain(one) for policy in status.get("policies") or {} for one in manifests.of(policy)]


def newest_lines(folder: Path) -> list[str]:
    """The last log lines of all processes, oldest first."""
    found: list[tuple[str, str]] = []
    files = sorted((path for path in folder.glob("*") if path.is_file()), key=lambda path: path.stat().st_mtime)
    for path in files[-LOG_FILES:]:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - LOG_BYTES, 0))
            lines = file.read(LOG_BYTES).decode(errors="replace").splitlines()
        found += [(said[0], line) for line in lines if (said := log_line(line)) is not None]
    return [line for _, line in sorted(found)[-MOST_LINES:]]
