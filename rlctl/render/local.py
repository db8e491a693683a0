"""Documents of a run on this machine: a plan becomes the files below `run/`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlctl.plan import Document, Plan, RolePlan
from rlctl.render.engine import environment, render
from rlctl.spec.base import ROLES
from rlctl.spec.cluster import IMAGE_OF
from rlctl.spec.layout import LIVE, Layout

_WATCH = "watch.conf"
_VOLUME_ROLES = ("manager", "modelpool", "replay", "learner")


def local_documents(plan: Plan, *, layout: Layout, sockets: Path, python: str) -> list[Document]:
    """Files below `run/` of a run on this machine, in a stable order.

    Args:
        plan: what runs.
        layout: folders of the run.
        sockets: its private folder for sockets; holds no character that needs quoting.
        python: the interpreter of all its processes.

    Raises:
        SpecError: a template's fault, or a value that a document cannot hold.
    """
    assert plan.target == "local", plan.target
    engine = environment("ini")
    common = {
        "root": str(layout.root),
        "run_folder": str(layout.run),
        "logs": str(layout.logs),
        "sockets": str(sockets),
    }
    watch = [python, "-m", "rlctl.backends.local.process.watch", "--root", str(layout.root), "--sockets", str(sockets)]

    def from_template(name: str, template: str, role: str, values: Mapping[str, Any]) -> Document:
        return Document(name, render(engine, template, {**common, **values}), role, f"templates/{template}")

    made = [
        from_template("supervisord.conf", "local/supervisord.conf.j2", "", {"run": plan.run}),
        from_template(_WATCH, "local/watch.conf.j2", "", {"command": watch}),
    ]
    for role in plan.roles:
        values = _program(plan, role, layout, sockets, python)
        made.append(
            from_template(f"programs/{role.role}.conf", "local/program.conf.j2", role.role, {"program": values})
        )
    made += [Document(run_file_name(role), _json(role.run_file), role.role) for role in plan.roles]
    made.append(Document(LIVE, _json(plan.live), "manager"))
    if plan.tracked is not None:
        made.append(Document("spec.json", _json(plan.tracked), "manager"))
    return made


def interpreter(documents: Iterable[Document]) -> str | None:
    """Python interpreter that documents were rendered for; None for documents of a cluster."""
    for document in documents:
        if document.name == _WATCH:
            command = next(line for line in document.text.splitlines() if line.startswith("command = "))
            return shlex.split(command.removeprefix("command = ").replace("%%", "%"))[0]
    return None


def run_file_name(role: RolePlan) -> str:
    """Name of a role's run file: it has the hash, so that a running process never sees its run file change."""
    return f"{role.role}-{role.hash}.json"


def _program(plan: Plan, role: RolePlan, layout: Layout, sockets: Path, python: str) -> dict[str, Any]:
    """Template values of one role's section; `--name` and `--probe` are the template's, as they differ by replica."""
    command = [python, "-m", "rlctl_agents", role.role, "--run-file", str(layout.run / run_file_name(role))]
    command += ["--manager", f"ipc://{sockets}/manager-0.rpc"]
    if role.role in _VOLUME_ROLES:
        command += ["--volume", str(layout.root)]
    if role.role == "manager":
        command += ["--addresses", f"ipc://{sockets}/{{role}}-{{index}}.{{channel}}"]
        command += ["--control", f"unix:{sockets}/manager-0.control", "--live", str(layout.run / LIVE)]
    variables = {"OMP_NUM_THREADS": str(role.threads), "PYTHONUNBUFFERED": "1"}
    code = None if IMAGE_OF[role.role] == "core" else plan.code_path  # as on a cluster, whose core image holds no code
    if code is not None:
        variables["PYTHONPATH"] = code
    return {
        "command": command,
        "environment": variables,
        "directory": code or str(layout.root),
        "priority": 100 + ROLES.index(role.role),
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
