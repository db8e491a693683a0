"""Why a process ended, to the manager: it keeps the lines of processes that are gone."""

from __future__ import annotations

from rlctl_agents.runtime.arguments import Arguments
from rlctl_agents.runtime.wiring import open_wire
from rlctl_agents.types.control import Orders, Report
from rlctl_agents.wire.rpc.client import RpcClient

LAST_WORDS_S = 1.0


def last_words(arguments: Arguments, boot: str, report: Report) -> None:
    """Report once more, over a connection of its own: that of the process is closed by then.

    Raises:
        TimeoutError: the manager does not answer.
        RemoteError: it refuses.
    """
    wire = open_wire(arguments)
    try:
        client = RpcClient(wire, arguments.manager, boot)
        try:
            client.call(report, Orders, deadline_s=LAST_WORDS_S)
        finally:
            client.close()
    finally:
        wire.close()
