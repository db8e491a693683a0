"""`python -m rlctl_agents files`: serves files of a run that is over, in a pod that `rlctl` makes beside its volume.

Reads the run's folder, writes nothing, needs no keys and connects to no process. It listens on the loopback address
only, where a forwarded port of the API server ends.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from rlctl.spec.layout import Layout
from rlctl_agents.manager.web.stored_files import StoredFiles
from rlctl_agents.runtime import logs
from rlctl_agents.runtime.http_server import HttpListener, Request, Response
from rlctl_agents.runtime.process import USERS_FAULT, new_boot, serve_until_told

NAME = "files"

log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM; returns the exit code.

    Args:
        arguments: arguments after the word `files`.
    """
    parser = argparse.ArgumentParser(f"rlctl_agents {NAME}", description="Hand out files of a run that is over.")
    parser.add_argument("--run-dir", type=Path, required=True, metavar="PATH", help="the run's folder on the volume")
    parser.add_argument("--port", type=int, required=True, help="of the loopback; 0: any, which is logged")
    parser.add_argument("--run", default="", help="name of the run, for log lines")
    options = parser.parse_args(list(arguments))
    logs.set_up(logs.Identity(options.run, NAME, f"{NAME}/0", new_boot()))
    if not options.run_dir.is_dir():
        log.error(
            "there is no %s on the volume: the run has stored nothing, or its folder was removed", options.run_dir
        )
        return USERS_FAULT
    address, answer = f"tcp:127.0.0.1:{options.port}", answers(options.run_dir)
    where = f"on port {options.port} of the loopback"
    return serve_until_told(options.run_dir, where, lambda: HttpListener(address, answer, name=NAME))


def answers(folder: Path) -> Callable[[Request], Response]:
    """Handler of the listener: GET /files, as of a run's manager, and nothing else.

    Args:
        folder: folder of the run.
    """
    files = StoredFiles(Layout(folder))

    def answer(request: Request) -> Response:
        if request.path != "/files":
            return Response.refusal(404, f"there is no {request.path[:200]}; here is /files")
        if request.method not in ("GET", "HEAD"):
            return Response.refusal(405, "/files is read with GET")
        return files.answer(request.query)

    return answer
