"""Tests on a real cluster: `make test-cluster`. What they need of it, and what is told at the end.

A test belongs to one tier (api, smoke, faults, scale) and may need something (rwx, policy, psa, nodes, two_nodes,
fake_nodes, registry, buildah, disturb); these are marks. A cluster that lacks something is told at the end, loudly, and
the test counts as not run. Every test has a namespace of its own, in which its people are namespace-only service
accounts; tests that look at a run, or do one thing to it after the other, share the one of their module.

Tests run beside each other in several processes (pytest-xdist), but for those that disturb the cluster or fill it
(`disturb`, `scale`): `make test-cluster` runs these afterwards, one at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.cluster.support import images as images_of
from tests.cluster.support import telling
from tests.cluster.support.contract import NEEDS, TIERS, Contract, environment
from tests.cluster.support.gateway import Gateway
from tests.cluster.support.people import Person, admit
from tests.cluster.support.telling import TALLY
from tests.cluster.support.witness import Witness

HERE = Path(__file__).parent
FAILED = pytest.StashKey[bool]()
MADE = "RLCTL_TEST_MADE"
"""A folder of several sessions, named by the process that starts them: they share what one made of this checkout."""
TALLIED = "tally of the cluster tests"
GRACE_S = 1
"""For pods of a test that is over: no test looks at them any more, and the next one needs what they take."""

Admit = Callable[[str], Person]


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in (TIERS | NEEDS).items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    config.addinivalue_line(
        "markers", "fresh: its commands are `python -m rlctl`, as people run it, not forks of a process"
    )
    config.addinivalue_line("markers", "early: begins before others: it takes long, or makes what they wait for")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a cluster, and put all in the order in which workers take them: `early`, quick ones, the rest."""
    for item in items:
        tier = _tier(item)
        if HERE in item.path.parents and tier:
            item.add_marker(pytest.mark.cluster)
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(120 if tier == "api" else 600))
    items.sort(key=lambda item: 0 if item.get_closest_marker("early") else 1 if _tier(item) in ("api", "") else 2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Refuse a cluster before there are workers: one that ends the session looks as if it had crashed."""
    if "not cluster" not in config.option.markexpr:
        _contract()


class InOrder(LoadScopeScheduling):
    """Gives a worker that is free the next test; all of a module with tests that share a `resident` go to one.

    A mark would say it better, but xdist_group of pytest-xdist 3.8 does not work with the ids of pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        return module if _shares(self.config.rootpath / module) else nodeid


@cache
def _shares(module: Path) -> bool:
    return "resident" in module.read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> InOrder:
    return InOrder(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test out, and say so, when the cluster lacks what it needs."""
    if not _tier(item):
        return
    contract = _contract()
    for need in NEEDS:
        if item.get_closest_marker(need) and not contract.has(need):
            TALLY.missing.append((need, item.nodeid))
            pytest.skip(f"missing: {NEEDS[need]}")


@cache
def _witness() -> Witness:
    return Witness(environment()[0])


@cache
def _contract() -> Contract:
    """The cluster's abilities; a cluster without the marker ends the session before anything is written."""
    context, registry, command = environment()
    found = Contract(context, registry, command, _witness().marker())
    TALLY.cluster = found.told(_witness().version())
    return found


@pytest.fixture(scope="session")
def witness() -> Witness:
    """The administrator of the test cluster."""
    return _witness()


@pytest.fixture(scope="session")
def contract() -> Contract:
    return _contract()


@contextmanager
def _lent(witness: Witness) -> Iterator[str]:
    """A name for a namespace, which its first person makes; removed with everything in it, which is not waited for."""
    name = f"rlctl-test-{secrets.token_hex(4)}"
    yield name
    witness.delete("Namespace", name)
    witness.delete_all("Pod", name, grace_s=GRACE_S)


def _explain(request: pytest.FixtureRequest, witness: Witness, namespace: str) -> None:
    if request.node.stash.get(FAILED, False):
        report = "\n".join(telling.dump(witness, namespace))
        request.node.add_report_section("teardown", f"namespace {namespace}", report)


@pytest.fixture
def namespace(witness: Witness, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own."""
    with _lent(witness) as name:
        yield name
        _explain(request, witness, name)


@pytest.fixture
def person(namespace: str, witness: Witness, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Admit]:
    """Makes people of the namespace by name."""
    people: list[Person] = []

    def make(name: str) -> Person:
        quick = request.node.get_closest_marker("fresh") is None
        people.append(admit(witness, name, namespace, tmp_path / name, quick=quick))
        return people[-1]

    yield make
    telling.capture(request.node.name, people)


@pytest.fixture
def ana(person: Admit) -> Person:
    """A researcher."""
    return person("ana")


@pytest.fixture(scope="module")
def resident(witness: Witness, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """A researcher with a namespace that lasts for all tests of a module, which run in one process."""
    with _lent(witness) as name:
        yield admit(witness, "eve", name, tmp_path_factory.mktemp("eve"), quick=True)


@pytest.fixture
def explained(resident: Person, witness: Witness, request: pytest.FixtureRequest) -> Iterator[None]:
    """Tell what `resident` saw during one test, as of any other person."""
    resident.transcript.clear()
    yield
    _explain(request, witness, resident.namespace)
    telling.capture(request.node.name, [resident])


@pytest.fixture
def gateway(witness: Witness) -> Iterator[Gateway]:
    """Another address of the API server, which counts."""
    with Gateway(witness.server, witness.ca_file) as way:
        yield way


@pytest.fixture
def counted(ana: Person, gateway: Gateway) -> Person:
    """The researcher, with every request counted by `gateway`."""
    return ana.through(gateway.url)


@pytest.fixture(scope="session")
def images(contract: Contract, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Role images of this checkout, in the registry of the cluster: image name -> reference by digest."""
    folder = tmp_path_factory.mktemp("images")
    found: dict[str, str] = _once("images", tmp_path_factory, lambda: images_of.role_images(contract, folder))
    return found


@pytest.fixture(scope="session")
def service_image(contract: Contract, tmp_path_factory: pytest.TempPathFactory) -> str:
    """That of `rlctl ci serve`, by digest."""
    folder = tmp_path_factory.mktemp("service")
    return str(_once("service", tmp_path_factory, lambda: images_of.service_image(contract, folder)))


def _once(what: str, folders: pytest.TempPathFactory, make: Callable[[], Any]) -> Any:
    """Result of the first worker to ask; the others wait for it, and later sessions that share a folder.

    Source: pytest-xdist, "Making session-scoped fixtures execute only once".
    """
    own = folders.getbasetemp()
    session = own.parent if own.name.startswith("popen-") else own
    shared = Path(os.environ.get(MADE) or session)
    with (shared / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = shared / f"{what}.json"
        if not made.exists():
            made.write_text(json.dumps(make()))
        return json.loads(made.read_text())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    tier = _tier(item)
    if tier:
        TALLY.seconds[tier] += report.duration
        if report.failed:
            item.stash[FAILED] = True
            TALLY.ended[tier, "failed"] += 1
        elif report.when == "call" and report.passed:
            TALLY.ended[tier, "passed"] += 1
        elif report.skipped:
            TALLY.ended[tier, "missing"] += 1
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the counts of a worker of xdist to the process that tells them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[TALLIED] = TALLY.packed()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended; one that crashed leaves nothing, and xdist says so."""
    TALLY.add(getattr(node, "workeroutput", {}).get(TALLIED))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in TALLY.lines():
        terminalreporter.write_line(line)


def _tier(item: pytest.Item) -> str:
    return next((tier for tier in TIERS if item.get_closest_marker(tier)), "")
