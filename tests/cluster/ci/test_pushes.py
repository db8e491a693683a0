"""A push on a real cluster: a signed hook, an image in a real registry, pods that run it, and back from a bad one."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.ci.lights import SPEC, Ci, Forge
from tests.cluster.support.commands import Done
from tests.cluster.support.contract import Contract
from tests.cluster.support.images import with_code_of
from tests.cluster.support.people import Person
from tests.cluster.support.specs import SMALL
from tests.cluster.support.telling import TALLY
from tests.cluster.support.training import Training
from tests.cluster.support.witness import Witness

pytestmark = [pytest.mark.smoke, pytest.mark.nodes, pytest.mark.rwx, pytest.mark.registry, pytest.mark.timeout(1200)]

CORE = ("manager", "modelpool")
CODED = ("learner", "actor", "evaluator")
CLUSTER: Mapping[str, Any] = {
    **SPEC,
    "target": "kubernetes",
    "roles": {**SMALL, "actor": {**SMALL["actor"], "replicas": 2, "envs": 16}},
    "storage": {"size": "1Gi"},
}
REPLICAS = {"learner": 1, "evaluator": 1, "actor": 2}  # as they become ready
Serve = Callable[..., Ci]


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return Forge(tmp_path, CLUSTER)


@pytest.fixture
def serve(
    person: Callable[[str], Person], forge: Forge, contract: Contract, images: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Serve]:  # fmt: skip
    """Starts the service on loopback, as a user with rights in the namespace who has not started the run."""
    monkeypatch.setenv("BUILDAH_ISOLATION", "chroot")
    started: list[Ci] = []

    def start(builder: str) -> Ci:
        robot = person("robot")
        project = {
            "target": "kubernetes", "namespace": robot.namespace, "builder": builder, "plain_http": True,
            "registry": f"{contract.registry}/ci", "sets": [f"images.{name}={image}" for name, image in images.items()],
            "verify": {"ready_within_s": 120, "watch_s": 5, "min_throughput": 0.01},
        }  # fmt: skip
        started.append(Ci(robot, robot.home, robot.env, forge, **project))
        started[-1].start()
        return started[-1]

    yield start
    for ci in started:
        ci.stop()


@pytest.fixture
def run(ana: Person, forge: Forge, contract: Contract, images: dict[str, str], witness: Witness) -> Training:
    """A run that a person has started from the first commit, and that learns."""
    forge.commit("first")
    overlay = ana.home / "images.yaml"
    with_code_of(contract, forge.copy / "spec.yaml", overlay, images)
    ana("up", str(forge.copy / "spec.yaml"), str(overlay), "--wait", "--timeout", "4m", timeout_s=300)
    ana("wait", "lights", "--for", "consumed_steps=10000", "--timeout", "2m", timeout_s=180)
    return Training(ana, witness, "lights", "")


@pytest.mark.early
def test_a_push_redeploys_a_training_that_goes_on_learning_and_a_bad_one_is_rolled_back_by_itself(
    run: Training, forge: Forge, serve: Serve
) -> None:
    ci = serve("append")
    uid, steps, core, before = run.status()["uid"], run.steps(), run.uids(*CORE), run.uids(*CODED)

    began = time.monotonic()
    build = ci.hook(forge.commit("second"))
    ready_s = {}
    for role, count in REPLICAS.items():
        run.until(role, count, other_than=before)
        ready_s[role] = f"{role} {time.monotonic() - began:.1f} s"
    ended = ci.ended(build, 300)
    tell(run, ci, build, f"append: push to pods of the new image ready: {', '.join(ready_s.values())}", ended)
    assert ended["state"] == "succeeded", ci.log(build)
    good = made(ended)
    assert set(good) == {"actor", "learner"}
    assert all("/ci/rlctl-" in image and "@sha256:" in image for image in good.values())
    assert run_by(run) == {"learner": {good["learner"]}, "actor": {good["actor"]}, "evaluator": {good["actor"]}}
    assert 'NOTE = "second"' in code_in(run, "actor")
    assert run.uids(*CORE) == core, "manager and model pool hold no code of a user"
    run.goes_on()
    status = run.status()
    assert status["uid"] == uid
    assert status["resumed"]["steps"] > 0, "the learner went on from its generation"
    assert status["totals"]["consumed_steps"] > steps

    began = time.monotonic()
    bad = forge.commit("third", step='raise RuntimeError("a bad commit")')
    build = ci.hook(bad)
    ended = ci.ended(build, 500)
    tell(run, ci, build, f"append: bad push to rolled back in {time.monotonic() - began:.1f} s", ended)
    assert ended["state"] == "rolled_back", ci.log(build)
    assert "a bad commit" in ci.log(build)
    assert made(ended) != good, "it was built, and deployed"
    assert run_by(run) == {"learner": {good["learner"]}, "actor": {good["actor"]}, "evaluator": {good["actor"]}}
    run.goes_on()
    assert ci.pins() == {"main": bad}

    build = ci.hook(forge.commit("fourth"))
    ended = ci.ended(build, 300)
    tell(run, ci, build, "append: a newer commit goes on", ended)
    assert ended["state"] == "succeeded", ci.log(build)
    assert run_by(run)["actor"] == {made(ended)["actor"]}
    run.goes_on()
    assert run.status()["uid"] == uid


@pytest.mark.buildah
def test_a_push_of_code_that_needs_packages_is_built_by_buildah(
    run: Training, forge: Forge, serve: Serve, index: str
) -> None:
    ci = serve("buildah")
    forge.spec = {**CLUSTER, "code": {"path": ".", "requirements": "requirements.txt"}}
    wanted = {"requirements.txt": f"--index-url {index}\nrlctl-test-lamp==1.0\n"}
    build = ci.hook(forge.commit("with a lamp", step="import lamp; lamp.lit()", **wanted))
    ended = ci.ended(build, 500)
    tell(run, ci, build, "buildah: push with requirements to verified", ended)
    assert ended["state"] == "succeeded", ci.log(build)
    assert "Successfully installed rlctl-test-lamp-1.0" in ci.log(build)
    assert run_by(run)["actor"] == {made(ended)["actor"]}
    run.goes_on()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A package index on loopback with one package of pure Python; its address."""
    name, folder = "rlctl_test_lamp-1.0", tmp_path / "index" / "rlctl-test-lamp"
    folder.mkdir(parents=True)
    about = {"METADATA": "Metadata-Version: 2.1\nName: rlctl-test-lamp\nVersion: 1.0\n"}
    about["WHEEL"] = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {"lamp.py": "def lit() -> bool:\n    return True\n"}
    files |= {f"{name}.dist-info/{file}": text for file, text in about.items()}
    record = "".join(f"{file},sha256={_digest(text)},{len(text)}\n" for file, text in files.items())
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as wheel:
        for file, text in {**files, f"{name}.dist-info/RECORD": record}.items():
            wheel.writestr(file, text)
    (folder / f"{name}-py3-none-any.whl").write_bytes(packed.getvalue())
    handler = partial(Quiet, directory=str(folder.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def made(build: Mapping[str, Any]) -> dict[str, str]:
    """Name -> image that a build has made."""
    return {one["name"]: one["reference"] for one in build["artifacts"]}


def run_by(run: Training) -> dict[str, set[str]]:
    """Role -> images of its pods."""
    return {
        role: {container["image"] for pod in run.pods(role).values() for container in pod["spec"]["containers"]}
        for role in CODED
    }


def code_in(run: Training, role: str) -> str:
    """The environment as a pod of the role has it."""
    return run.witness.run(next(iter(run.pods(role))), run.who.namespace, "cat", "/code/lights/guess.py")


def tell(run: Training, ci: Ci, build: int, what: str, ended: Mapping[str, Any]) -> None:
    """Seconds by stage: printed at the end of the session, and kept with the commands of the test."""
    took = ended["seconds"]
    text = f"{what}; by stage: {', '.join(f'{state} {s:.1f}' for state, s in took['stages'].items())}"
    if took["redeployed"] is not None:
        text += f"; redeployed after {took['redeployed']:.1f} s"
    TALLY.figures.append(text)
    run.who.transcript.append(Done(f"curl {ci.url}/builds/{build}.json", 0, f"{text}\n", "", 0.0, 0.0))
    ci.log(build)
