"""Surroundings of the command line: streams, clocks, the environment, the targets."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from rlctl.errors import RlctlError, UsageError
from rlctl.spec.layout import API_VERSION

if TYPE_CHECKING:
    from rlctl.backends.base import Backend
    from rlctl.image_names import Reference
    from rlctl.probe import Probing
    from rlctl.spec import Machine, Spec

TARGETS: Mapping[str, str] = {
    "local": "rlctl.backends.local:LocalBackend",
    "kubernetes": "rlctl.backends.kubernetes.backend:KubernetesBackend",
}
"""Target -> module and class. A further backend is one line here."""
ON_CLUSTERS = frozenset({"kubernetes"})
"""Targets that are clusters, of which a user may have several: their class takes context and namespace."""


class Cluster(NamedTuple):
    """Context and namespace of a cluster; None: not named."""

    context: str | None = None
    namespace: str | None = None


NOWHERE = Cluster()
REGISTRY_S = 10.0
"""Timeout of one request to a registry, in seconds."""


class Output(StrEnum):
    """Choices of `-o`."""

    table = "table"
    json = "json"


class WideOutput(StrEnum):
    """Choices of `-o` with a wide table."""

    table = "table"
    wide = "wide"
    json = "json"


class Signalled(BaseException):
    """Ends the command with 128 + the number of a signal; nothing but `main` catches it."""

    def __init__(self, exit_code: int, message: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message


class ReaderGone(Signalled):
    """Broken pipe on our output: exit 141, as quiet as a death by SIGPIPE."""

    def __init__(self) -> None:
        super().__init__(141)


def require(extra: str, *packages: str) -> None:
    """Require packages that an extra of rlctl brings, without importing them.

    Raises:
        UsageError: one is not installed here.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"{package} is not installed here", hint=f'pip install "rlctl[{extra}]"')


def _browse(url: str) -> object:
    """Open a URL in the user's browser; a failure is harmless, as the URL is printed too."""
    import webbrowser

    return webbrowser.open(url)


def _probe(spec: Spec, base: Path, initial: Mapping[str, Any]) -> Probing:
    """Check of a spec and its initial policy on this machine, in a child process."""
    from rlctl.probe import Probing

    return Probing(spec, base, initial=initial)


def _label(environ: Mapping[str, str], image: Reference, name: str) -> str | None:
    """A label of an image from its registry; "" without one, None where there is no such image."""
    from rlctl.image_names import loopback
    from rlctl.images.registry.client import Registry
    from rlctl.images.registry.logins import logins

    return Registry(not loopback(image.registry), logins(environ), REGISTRY_S).label(image, name)


def _become(command: Sequence[str]) -> None:
    """Replace this process by a program (exec), which takes over the terminal, its signals and the exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], list(command))


def _nothing() -> TextIO:
    """Null stream, in place of one that the shell has closed."""
    return open(os.devnull, "r+")


def _plain(value: object) -> object:
    """Value of a document: a record as its fields, anything else that JSON lacks as text."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def _checked(namespace: str | None, where: str) -> str | None:
    """Check the name of a namespace.

    Raises:
        UsageError: no namespace can have that name.
    """
    if namespace and not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", namespace):
        raise UsageError(
            f"{where} {namespace!r} is no name of a namespace",
            hint="at most 63 of a-z, 0-9 and -, with no - at the ends",
        )
    return namespace or None


@dataclass
class World:
    """One invocation: where it writes, what time it is, which targets there are.

    stdout carries data, stderr carries chat; with `output` json, stdout carries one JSON document and nothing else.
    """

    stdout: TextIO = field(default_factory=lambda: sys.stdout or _nothing())
    stderr: TextIO = field(default_factory=lambda: sys.stderr or _nothing())
    stdin: TextIO = field(default_factory=lambda: sys.stdin or _nothing())
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    targets: Mapping[str, str | Callable[..., Backend]] = field(default_factory=lambda: TARGETS)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    width: int | None = None  # None: the terminal's
    machine: Machine | None = None  # None: this one
    browse: Callable[[str], object] = _browse
    probe: Callable[[Spec, Path, Mapping[str, Any]], Probing] = _probe
    label: Callable[[Mapping[str, str], Reference, str], str | None] = _label
    become: Callable[[Sequence[str]], object] = _become

    output: str = "table"
    quiet: bool = False
    streams: bool = False  # -o json prints many documents, one a line
    wrote_json: bool = False
    cluster: Cluster = NOWHERE  # as -n and --context say; no environment variable counts here
    _backends: dict[tuple[str, Cluster], Backend] = field(default_factory=dict)

    def setup(self, output: str, quiet: bool, context: str | None = None, namespace: str | None = None) -> World:
        """Set output, quietness and cluster from the options that all verbs share."""
        self.output = output
        self.quiet = quiet
        self.cluster = Cluster(context or None, _checked(namespace, "-n"))
        return self

    @property
    def as_json(self) -> bool:
        return self.output == "json"

    def data(self, text: str = "") -> None:
        """A line of the answer, to stdout; nothing when the answer is JSON."""
        if not self.as_json:
            self._write(self.stdout, text + "\n")

    def lines(self, texts: Iterable[str]) -> None:
        """Lines of the answer, see `data`."""
        for text in texts:
            self.data(text)

    def document(self, content: Mapping[str, Any]) -> None:
        """The answer of `-o json`, records in it as their fields; nothing otherwise."""
        self._json(content, indent=2)

    def json_line(self, content: Mapping[str, Any]) -> None:
        """One of many JSON documents, on a line of its own; nothing unless `-o json`."""
        self._json(content, indent=None)

    def raw(self, text: str) -> None:
        """Write data to stdout unchanged, whatever -o says."""
        self.wrote_json = True
        self._write(self.stdout, text)

    def say(self, text: str = "") -> None:
        """A line of progress, to stderr; nothing with --quiet."""
        if not self.quiet:
            self.complain(text)

    def mention(self, text: str) -> None:
        """Like `say`, but without errors, in the middle of a target's work: it goes on after a broken pipe."""
        with suppress(RlctlError, ReaderGone):
            self.say(text)

    def complain(self, text: str) -> None:
        """A line to stderr, --quiet or not."""
        self._write(self.stderr, text + "\n")

    def is_terminal(self, stream: TextIO) -> bool:
        """Whether a stream is a terminal with cursor control."""
        return stream.isatty() and self.environ.get("TERM", "") != "dumb"

    def bold(self, text: str) -> str:
        """Text in bold on stdout, where that is wanted and supported."""
        wanted = self.is_terminal(self.stdout) and not self.environ.get("NO_COLOR")
        return f"\x1b[1m{text}\x1b[0m" if wanted else text

    def can_ask(self) -> bool:
        """Whether standard input and error are terminals, so that a question can be answered."""
        return self.stdin.isatty() and self.stderr.isatty()

    def ask(self, question: str) -> str:
        """The answer to a question put to stderr, without its line end; empty at the end of the input."""
        self._write(self.stderr, question)
        return self.stdin.readline().strip()

    def target_names(self) -> tuple[str, ...]:
        return tuple(self.targets)

    @property
    def usual_cluster(self) -> Cluster:
        """Cluster of RLCTL_CONTEXT and RLCTL_NAMESPACE; KUBECONFIG is read by the client itself."""
        namespace = _checked(self.environ.get("RLCTL_NAMESPACE"), "RLCTL_NAMESPACE")
        return Cluster(self.environ.get("RLCTL_CONTEXT") or None, namespace)

    def backend(self, target: str, cluster: Cluster | None = None) -> Backend:
        """The backend of a target, imported at its first use.

        Args:
            target: its name.
            cluster: which one, where there are several; None: what the command line says, then the environment.

        Raises:
            UsageError: no such target, or not built yet.
            BackendUnreachable: its packages are not installed.
        """
        if target not in ON_CLUSTERS:
            cluster = NOWHERE
        elif cluster is None:
            said, usual = self.cluster, self.usual_cluster
            cluster = Cluster(said.context or usual.context, said.namespace or usual.namespace)
        if (target, cluster) not in self._backends:
            made = self._load(target, cluster if target in ON_CLUSTERS else ())
            made.waiting = made.note = self.mention
            self._backends[target, cluster] = made
        return self._backends[target, cluster]

    def _load(self, target: str, arguments: tuple[str | None, ...]) -> Backend:
        path = self.targets.get(target)
        if path is None:
            raise UsageError(
                f"target {target}: not built yet", hint=f"targets of this release: {', '.join(self.target_names())}"
            )
        if not isinstance(path, str):
            return path(*arguments)
        module, _, name = path.partition(":")
        from rlctl.backends.base import packages_of

        with packages_of(target):
            made: Backend = getattr(importlib.import_module(module), name)(*arguments)
        return made

    def _json(self, content: Mapping[str, Any], indent: int | None) -> None:
        if self.as_json:
            self.wrote_json = True
            document = {"apiVersion": API_VERSION, **content}
            self._write(self.stdout, json.dumps(document, indent=indent, default=_plain) + "\n")

    def _write(self, stream: TextIO, text: str) -> None:
        try:
            stream.write(text)
            stream.flush()
        except BrokenPipeError:
            raise ReaderGone from None
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            self._write(stream, text.encode(encoding, "replace").decode(encoding))
        except OSError as error:
            raise RlctlError(f"the answer cannot be written: {(error.strerror or str(error)).lower()}") from error
