"""Ten thousand actors: cost of rlctl on a cluster, beside the same Deployments applied by plain kubectl.

    RLCTL_TEST_CONTEXT=... python -m benchmarks.cluster [--actors 10000] [--json FILE]

needs a cluster for tests (tests/cluster/support/contract.py) with fake nodes for so many pods and controllers without
request ceilings: it is rlctl that is measured. kubectl goes first, on the fresher server. Every number of rlctl is
that of the command as a user runs it; requests are counted between it and the API server.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rlctl.spec.names import COMPONENT, selector
from tests.cluster.support.commands import Done
from tests.cluster.support.contract import environment
from tests.cluster.support.gateway import Gateway
from tests.cluster.support.people import Person, admit
from tests.cluster.support.specs import NO_IMAGE, spec
from tests.cluster.support.witness import Object, Witness, kubeconfig

RUN = "big"
WAITING = "test-cluster/waiting"
"""Fake pods with this annotation wait for ever, for that reason."""
SECONDS = 900.0


@dataclass
class Figures:
    """Measured figures; times in seconds."""

    actors: int
    server: str
    seconds: dict[str, float] = field(default_factory=dict)
    plain: dict[str, float] = field(default_factory=dict)  # kubectl
    requests: dict[str, str] = field(default_factory=dict)
    total: dict[str, int] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)
    peak_mib: dict[str, float] = field(default_factory=dict)
    rendered_bytes: int = 0
    objects: int = 0
    said: dict[str, str] = field(default_factory=dict)

    def ratio(self, verb: str) -> float:
        return self.seconds[verb] / self.plain[verb]

    def table(self) -> Iterator[str]:
        """As Markdown."""
        rendered = f"{self.objects} objects, {self.rendered_bytes:,} bytes of YAML"
        yield f"{self.actors:,} actors, Kubernetes {self.server}, {rendered}"
        yield ""
        yield "| | rlctl s | plain kubectl s | ratio | requests | peak RSS MiB |"
        yield "|---|---|---|---|---|---|"
        for verb, seconds in self.seconds.items():
            plain = f"{self.plain[verb]:.1f}" if verb in self.plain else "-"
            ratio = f"{self.ratio(verb):.2f}" if verb in self.plain else "-"
            peak = f"{self.peak_mib[verb]:.0f}" if verb in self.peak_mib else "-"
            yield f"| {verb} | {seconds:.1f} | {plain} | {ratio} | {self.requests.get(verb, '-')} | {peak} |"


class Bench:
    """One series of measurements.

    Args:
        beside_kubectl: measure plain kubectl too.
    """

    def __init__(
        self, witness: Witness, folder: Path, actors: int, say: Callable[[str], object] = print, *,
        beside_kubectl: bool = True,
    ) -> None:  # fmt: skip
        self._witness, self._folder, self._say, self._beside_kubectl = witness, folder, say, beside_kubectl
        self._namespaces = [f"rlctl-test-{secrets.token_hex(4)}" for _ in range(2)]
        self.figures = Figures(actors, witness.version())
        self._half = actors // 2

    def run(self) -> Figures:
        with Gateway(self._witness.server, self._witness.ca_file) as gateway:
            try:
                ana = admit(self._witness, "ana", self._namespaces[0], self._folder / "ana").through(gateway.url)
                file = self._spec(ana)
                documents = self._render(ana, gateway, file)
                if self._beside_kubectl:
                    self._kubectl(documents)
                self._rlctl(ana, gateway, file)
            finally:
                for namespace in self._namespaces:
                    self._witness.delete("Namespace", namespace)
        return self.figures

    def _spec(self, who: Person) -> str:
        images = dict.fromkeys(("core", "actor", "learner"), NO_IMAGE)
        content = spec(RUN, actors=self.figures.actors, images=images)
        content["roles"]["actor"] |= {"cpu": 0.05, "memory": "128Mi"}
        return who.writes(f"{RUN}.yaml", content)

    def _render(self, who: Person, gateway: Gateway, file: str) -> list[Object]:
        done = who("render", file)
        self._note("render", done, gateway)
        self.figures.rendered_bytes = len(done.stdout.encode())
        documents = [yaml.safe_load(each["text"]) for each in who("render", file, "-o", "json").json()["documents"]]
        self.figures.objects = len(documents)
        return documents

    def _kubectl(self, documents: list[Object]) -> None:
        """The actor Deployments of that rendering, in a namespace of their own, as one applies them by hand."""
        namespace = self._namespaces[1]
        self._witness.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        shards = [
            thing for thing in documents if thing["kind"] == "Deployment" and "-actor-" in thing["metadata"]["name"]
        ]
        for shard, count in zip(shards, self._spread(self.figures.actors, len(shards)), strict=True):
            shard["spec"]["replicas"] = count
        listed = yaml.safe_dump_all(shards)
        names = [f"deployment/{shard['metadata']['name']}" for shard in shards]
        with self._timed("up", self.figures.plain):
            self._plain(namespace, "apply", "--server-side", "-f", "-", stdin=listed)
            self._until_ready(namespace, self.figures.actors)
        with self._timed("scale", self.figures.plain):
            for name, count in zip(names, self._spread(self._half, len(shards)), strict=True):
                self._plain(namespace, "scale", name, f"--replicas={count}")
            self._until_ready(namespace, self._half)
        with self._timed("down", self.figures.plain):
            self._plain(namespace, "delete", "--cascade=foreground", "--wait=false", *names)
            self._until_gone(namespace)

    def _rlctl(self, who: Person, gateway: Gateway, file: str) -> None:
        actors = self.figures.actors
        with self._timed("up", self.figures.seconds):
            done = who("up", file, "-d", timeout_s=SECONDS)
            self._note("up, until asked for", done, gateway)
            self._until_ready(who.namespace, actors)
        self._note("up", done, gateway, seconds=self.figures.seconds["up"], requests_of="up, until asked for")
        self._note("up again", who("up", file, "-d", timeout_s=SECONDS), gateway)
        self._note("diff", who("diff", file, timeout_s=SECONDS), gateway)
        done = who("status", RUN)
        self.figures.said["status"] = done.stdout
        self._note("status", done, gateway)
        self._trouble(who, gateway)
        with self._timed("scale", self.figures.seconds):
            done = who("scale", f"actor={self._half}", "--run", RUN, timeout_s=SECONDS)
            self._until_ready(who.namespace, self._half)
        self._note("scale", done, gateway, seconds=self.figures.seconds["scale"])
        with self._timed("down", self.figures.seconds):
            done = who("down", RUN, "--grace", "10m", timeout_s=SECONDS)
            self._until_gone(who.namespace)
        self._note("down", done, gateway, seconds=self.figures.seconds["down"])

    def _trouble(self, who: Person, gateway: Gateway) -> None:
        """Another client changes the last shard so that its pods never start; `status` has to find them among all."""
        shards = self._witness.list("Deployment", who.namespace, f"{selector(RUN)},{COMPONENT}=actor")
        last = max(shards, key=lambda shard: int(shard["metadata"]["name"].rpartition("-")[2]))
        name = last["metadata"]["name"]

        def unavailable(found: dict[str, Object]) -> bool:
            return (found[name]["status"].get("unavailableReplicas") or 0) > 100

        self._witness.apply(
            _annotated(last, {WAITING: "CrashLoopBackOff"}), namespace=who.namespace, manager="somebody"
        )
        self._witness.until(
            "Deployment", who.namespace, unavailable, what="a hundred pods that do not start", timeout_s=120
        )
        done = who("status", RUN)
        self.figures.said["status with trouble"] = done.stdout
        self._note("status with trouble", done, gateway)
        self._witness.apply(_annotated(last, {}), namespace=who.namespace, manager="somebody")
        self._until_ready(who.namespace, self.figures.actors)

    def _note(
        self, what: str, done: Done, gateway: Gateway, *, seconds: float | None = None, requests_of: str = ""
    ) -> None:  # fmt: skip
        figures = self.figures
        figures.seconds[what] = done.seconds if seconds is None else seconds
        figures.peak_mib[what] = done.peak_mib
        if requests_of:
            for table in (figures.requests, figures.total, figures.writes):
                table[what] = table[requests_of]  # type: ignore[index, assignment]
        else:
            figures.total[what], figures.writes[what] = len(gateway.passed), len(gateway.writes)
            figures.requests[what] = f"{len(gateway.passed)}, {len(gateway.writes)} of them writes"
        gateway.forget()
        self._say(f"{what}: {figures.seconds[what]:.1f} s, {figures.requests[what]}, {done.peak_mib:.0f} MiB")

    def _until_ready(self, namespace: str, count: int) -> None:
        def ready(found: dict[str, Object]) -> bool:
            actors = [thing for name, thing in found.items() if "-actor-" in name]
            asked = sum(int(thing["spec"]["replicas"]) for thing in actors)
            counts = [thing.get("status") or {} for thing in actors]
            settled = all(
                int(status.get("replicas") or 0) == int(status.get("readyReplicas") or 0) for status in counts
            )
            return settled and asked == count == sum(int(status.get("readyReplicas") or 0) for status in counts)

        self._witness.until("Deployment", namespace, ready, what=f"{count:,} actors", timeout_s=SECONDS)

    def _until_gone(self, namespace: str) -> None:
        self._witness.until(
            "Deployment", namespace, lambda found: not found, what="the Deployments to go", timeout_s=SECONDS
        )
        self._witness.until("Pod", namespace, lambda found: not found, what="the pods to go", timeout_s=SECONDS)

    def _timed(self, what: str, table: dict[str, float]) -> _Timed:
        return _Timed(what, table, self._say)

    def _plain(self, namespace: str, *arguments: str, stdin: str | None = None) -> None:
        context, file = environment()[0], kubeconfig()
        subprocess.run(
            ["kubectl", "--context", context, "-n", namespace, *arguments], check=True, input=stdin, text=True,
            stdout=subprocess.DEVNULL, timeout=SECONDS, env={**os.environ, **({"KUBECONFIG": file} if file else {})},
        )  # fmt: skip

    @staticmethod
    def _spread(count: int, shards: int) -> list[int]:
        """As rlctl fills them: the first ones first."""
        return [min(1000, max(0, count - 1000 * shard)) for shard in range(shards)]


def _annotated(deployment: Object, notes: dict[str, str]) -> Object:
    """The Deployment as another client applies it, with no more fields of its pods than these annotations."""
    template = deployment["spec"]["template"]
    containers = [{"name": each["name"], "image": each["image"]} for each in template["spec"]["containers"]]
    about = {"labels": template["metadata"]["labels"], **({"annotations": notes} if notes else {})}
    body: Object = {"apiVersion": "apps/v1", "kind": "Deployment"}
    body["metadata"] = {"name": deployment["metadata"]["name"]}
    pods = {"metadata": about, "spec": {"containers": containers}}
    return {**body, "spec": {"selector": deployment["spec"]["selector"], "template": pods}}


class _Timed:
    def __init__(self, what: str, table: dict[str, float], say: Callable[[str], object]) -> None:
        self._what, self._table, self._say = what, table, say

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._table[self._what] = time.monotonic() - self._started
        self._say(f"... {self._what}: {self._table[self._what]:.1f} s")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "benchmarks.cluster", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--actors", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    witness = Witness(environment()[0])
    witness.marker()
    with tempfile.TemporaryDirectory() as folder:
        figures = Bench(witness, Path(folder), options.actors).run()
    print("\n".join(figures.table()))
    if options.json:
        content: dict[str, Any] = asdict(figures)
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
