"""Tests on a real cluster: `make test-cluster`. What they need of it, and what is told at the end.

A test belongs to one tier (api, smoke, faults, scale) and may need something (rwx, policy, psa, nodes, two_nodes,
fake_nodes, registry, buildah, disturb); these are marks. A cluster that lacks something is told at the end, loudly, and
the test counts as not run. Every test has a namespace of its own, in which its people are namespace-only service
accounts.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import images as images_of
from tests.cluster import telling
from tests.cluster.contract import NEEDS, TIERS, Contract, environment
from tests.cluster.gateway import Gateway
from tests.cluster.people import Person, admit
from tests.cluster.telling import TALLY
from tests.cluster.witness import Witness

HERE = Path(__file__).parent
FAILED = pytest.StashKey[bool]()
GONE_WITHIN_S = 120.0
"""A namespace whose pods have real containers: the next test is to have the machine for itself."""

Admit = Callable[[str], Person]


def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in (TIERS | NEEDS).items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = _tier(item)
        if HERE in item.path.parents and tier:
            item.add_marker(pytest.mark.cluster)
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(120 if tier == "api" else 600))


@pytest.fixture(scope="session")
def witness() -> Witness:
    """The administrator of the test cluster."""
    return Witness(environment()[0])


@pytest.fixture(scope="session")
def contract(witness: Witness) -> Contract:
    """What the cluster can; a cluster without the marker ends the session before anything is written."""
    context, registry, command = environment()
    found = Contract(context, registry, command, witness.marker())
    TALLY.contract, TALLY.version = found, witness.version()
    return found


@pytest.fixture(autouse=True)
def needs(request: pytest.FixtureRequest) -> None:
    """Leave a test out, and say so, when the cluster lacks what it needs."""
    if not _tier(request.node):
        return
    contract: Contract = request.getfixturevalue("contract")
    for need in NEEDS:
        if request.node.get_closest_marker(need) and not contract.has(need):
            TALLY.missing.append((need, request.node.nodeid))
            pytest.skip(f"missing: {NEEDS[need]}")


@pytest.fixture
def namespace(contract: Contract, witness: Witness, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name of its own; its first person makes it. Removed with everything in it."""
    name = f"rlctl-test-{secrets.token_hex(4)}"
    yield name
    if request.node.stash.get(FAILED, False):
        report = "\n".join(telling.dump(witness, name))
        request.node.add_report_section("teardown", f"namespace {name}", report)
    witness.delete("Namespace", name)
    if _tier(request.node) in ("smoke", "faults"):
        witness.until("Pod", name, lambda pods: not pods, what=f"the pods of {name} to go", timeout_s=GONE_WITHIN_S)


@pytest.fixture
def person(namespace: str, witness: Witness, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Admit]:
    """Makes people of the namespace by name."""
    people: list[Person] = []

    def make(name: str) -> Person:
        people.append(admit(witness, name, namespace, tmp_path / name, quick=_tier(request.node) == "api"))
        return people[-1]

    yield make
    telling.capture(request.node.name, people)


@pytest.fixture
def ana(person: Admit) -> Person:
    """A researcher."""
    return person("ana")


@pytest.fixture
def gateway(witness: Witness) -> Iterator[Gateway]:
    """Another address of the API server, which counts."""
    with Gateway(witness.server, witness.ca_file) as way:
        yield way


@pytest.fixture
def counted(ana: Person, gateway: Gateway) -> Person:
    """The researcher, every request of whom is counted by `gateway`."""
    return ana.through(gateway.url)


@pytest.fixture(scope="session")
def images(contract: Contract, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Role images of this checkout, in the registry of the cluster: image name -> reference by digest."""
    return images_of.role_images(contract, tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def service_image(contract: Contract, tmp_path_factory: pytest.TempPathFactory) -> str:
    """That of `rlctl ci serve`, by digest."""
    return images_of.service_image(contract, tmp_path_factory.mktemp("service"))


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


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in TALLY.lines():
        terminalreporter.write_line(line)


def _tier(item: pytest.Item) -> str:
    return next((tier for tier in TIERS if item.get_closest_marker(tier)), "")
