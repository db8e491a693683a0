"""Researchers: people with a namespace, a kubeconfig, a home folder, and `rlctl`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml

from rlctl.render.kubernetes import admin
from tests.cluster.support.commands import Command, Done, Start
from tests.cluster.support.witness import Witness

ACCOUNT: Final = "researcher"
BUG: Final = 70
CAPTURES: Final = os.environ.get("RLCTL_TEST_CAPTURES", "")
"""A folder: every command with its answer is kept there, one file a test."""


@dataclass(frozen=True)
class Person:
    """`rlctl` as run by a person with the rights of docs/operations.md in one namespace, and no others."""

    name: str
    namespace: str
    home: Path  # with their spec files and their index of runs
    kubeconfig: Path
    quick: bool = False  # commands are forked, which saves a second each
    transcript: list[Done] = field(default_factory=list, repr=False)

    @property
    def env(self) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith(("RLCTL_", "KUBE"))}
        own = {"KUBECONFIG": str(self.kubeconfig), "XDG_STATE_HOME": str(self.home / "state")}
        return env | own | {"LOGNAME": self.name, "USER": self.name, "NO_COLOR": "1", "COLUMNS": "160"}

    def __call__(self, *arguments: str, code: int | None = 0, timeout_s: float = 180.0) -> Done:
        """Run one command to its end, which is to have this exit code; None: any but that of a bug."""
        with self.started(*arguments, timeout_s=timeout_s) as command:
            done = command.done()
        assert done.code == code or (code is None and done.code != BUG), f"expected exit {code}\n{done}"
        return done

    @contextmanager
    def started(self, *arguments: str, timeout_s: float = 180.0) -> Iterator[Command]:
        """A command that goes on while the test does something; killed at the end of the block."""
        out, err = (self.home / f".{stream}-{time.monotonic_ns()}" for stream in ("out", "err"))
        start = Start(arguments, self.env, self.home, out, err)
        command = Command(start, timeout_s, self.transcript.append, quick=self.quick)
        try:
            yield command
        finally:
            command.end()

    def writes(self, file: str, content: Mapping[str, Any] | str) -> str:
        """A file of theirs; returns its name."""
        path = self.home / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(dict(content), sort_keys=False))
        return file

    def status(self, run: str) -> dict[str, Any]:
        return self("status", run, "-o", "json").json()  # type: ignore[no-any-return]

    def through(self, server: str) -> Person:
        """The same person, at another address of the same server."""
        found = yaml.safe_load(self.kubeconfig.read_text())
        found["clusters"][0]["cluster"] = {"server": server}
        other = self.kubeconfig.with_name("kubeconfig-through")
        other.write_text(yaml.safe_dump(found))
        return replace(self, kubeconfig=other)


def admit(witness: Witness, name: str, namespace: str, home: Path, *, quick: bool = False) -> Person:
    """Give a person a namespace of their own, as an administrator does: what `rlctl render --admin` prints.

    A namespace that is there already gets one researcher more.
    """
    account = ACCOUNT if name == "ana" else f"{ACCOUNT}-{name}"
    documents = [yaml.safe_load(each.text) for each in admin(namespace, f"system:serviceaccount:{namespace}:{account}")]
    for document in documents:
        if document["kind"] == "Namespace":
            document["metadata"]["labels"]["rlctl.dev/test"] = "true"
        if document["kind"] != "PriorityClass":  # one for the whole cluster; these tests name none
            witness.apply(document)
        if document["kind"] == "Namespace":
            about = {"name": account, "namespace": namespace}
            witness.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about})
    home.mkdir(parents=True, exist_ok=True)
    path = home / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig(witness, witness.token(account, namespace), namespace)))
    return Person(name, namespace, home, path, quick)


def kubeconfig(witness: Witness, token: str, namespace: str) -> dict[str, Any]:
    """One context, `test`, for one service account in one namespace."""
    cluster = {"server": witness.server}
    if witness.ca_file:
        cluster["certificate-authority"] = witness.ca_file
    context = {"cluster": "test", "user": "test", "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": context}],
    }
