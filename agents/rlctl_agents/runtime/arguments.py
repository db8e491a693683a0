"""The command line of a role process."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.spec.base import ROLES

WORKLOADS = "RLCTL_WORKLOADS"
NODE, IMAGE = "RLCTL_NODE", "RLCTL_IMAGE"
"""Variables of the environment that say where a process of a cluster runs."""
"""Environment variable: the default of `--workloads`."""


class UserFault(Exception):
    """Something only the user can mend: one clear sentence, no traceback, exit code 3."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a backend tells a role process."""

    role: str
    name: str  # "actor-3"; on a cluster the name of the pod
    run_file: Path
    manager: str
    probe: str  # "unix:PATH" or "tcp:ADDRESS:PORT"
    volume: Path | None = None
    addresses: str | None = None  # "ipc:///folder/{role}-{index}.{channel}", "tcp://r-{role}-{index}.r-{role}:{port}"
    control: str | None = None  # "unix:PATH" or "tcp:127.0.0.1:PORT"
    live: Path | None = None
    bind: str = ""  # the own address on the network, listened on whatever host the leased address names
    keys: Path | None = None
    ordinal: str | None = None  # "run-learner-2": a name whose number is meant
    stay: bool = False
    logs: bool = False
    workloads: str = ""  # "deployments/r-actor-0,statefulsets/r-learner"

    @property
    def off_host(self) -> bool:
        """Processes of this run may be on other machines."""
        return self.manager.startswith("tcp://")

    @property
    def prefer(self) -> int | None:
        """The index asked for: 3 for the ordinal `run-actor-3`, and on one machine for the name `actor-3`.

        Off this machine a name says nothing: the suffix of a Deployment's pod is random and may be all digits.
        """
        named = self.ordinal if self.ordinal is not None else "" if self.off_host else self.name
        match = re.fullmatch(r"(?:.*-)?([0-9]{1,9})", named)
        return int(match[1]) if match else None


def parse(arguments: Sequence[str]) -> Arguments:
    """Read the command line, without the program's name.

    Raises:
        UserFault: it is not one.
    """
    parser = _Parser("rlctl_agents", description="One role process of a run; started by a backend.")
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--name", required=True)
    parser.add_argument("--run-file", type=Path, required=True)
    parser.add_argument("--manager", required=True, metavar="ADDRESS")
    parser.add_argument("--probe", required=True, metavar="unix:PATH|tcp:ADDRESS:PORT")
    parser.add_argument("--volume", type=Path, metavar="RUNROOT")
    parser.add_argument("--addresses", metavar="PATTERN")
    parser.add_argument("--control", metavar="unix:PATH|tcp:127.0.0.1:PORT")
    parser.add_argument("--live", type=Path, metavar="FILE")
    parser.add_argument("--bind", default="", metavar="ADDRESS", help="listen here, on the port of the leased address")
    parser.add_argument(
        "--keys", type=Path, metavar="FOLDER", help="of CURVE keys; without, nothing leaves the machine"
    )
    parser.add_argument("--ordinal", metavar="NAME-NUMBER", help="of a pod whose number is the index")
    parser.add_argument("--stay", action="store_true", help="manager: answer as finished until SIGTERM")
    parser.add_argument("--logs", action="store_true", help="manager: keep what all processes say on the volume")
    parser.add_argument(
        "--workloads", default=os.environ.get(WORKLOADS, ""), metavar="KIND/NAME,...",
        help=f"manager: scaled to 0 when the run is finished; default: ${WORKLOADS}",
    )  # fmt: skip
    return Arguments(**vars(parser.parse_args(list(arguments))))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UserFault(f"command line: {message}")
