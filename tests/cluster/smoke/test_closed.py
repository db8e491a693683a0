"""Access to processes: none without keys, and over the network only that of the role matrix.

All look at one run, and leave it as it was.
"""

import json

import pytest

from rlctl.spec.names import PORTS, labels
from tests.cluster.support.people import Person
from tests.cluster.support.probing import Prober
from tests.cluster.support.training import Training, start
from tests.cluster.support.witness import Witness

pytestmark = [
    pytest.mark.smoke, pytest.mark.nodes, pytest.mark.rwx, pytest.mark.registry,
]  # fmt: skip

TCP = ("rpc", "notice", "experience", "probe", "control", "tensorboard")
KNOCK = """
import json, os, sys, time
import zmq
import zmq.utils.monitor

def opened(context, address, with_keys):
    socket = context.socket(zmq.DEALER)
    if with_keys:
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey = zmq.curve_keypair()[0]
    monitor = socket.get_monitor_socket()
    socket.connect(address)
    socket.send(b"hello")
    return socket, monitor

context = zmq.Context()
asked = [(address, with_keys) for address in json.loads(sys.argv[1]) for with_keys in (False, True)]
sockets = [opened(context, *one) for one in asked]
seen = [set() for _ in asked]
until = time.monotonic() + 10
while time.monotonic() < until:
    for (_, monitor), names in zip(sockets, seen):
        while monitor.poll(0):
            names.add(zmq.utils.monitor.recv_monitor_message(monitor)["event"].name)
    time.sleep(0.05)
found = {}
for (address, with_keys), (socket, _), names in zip(asked, sockets, seen):
    met = {"connected": "CONNECTED" in names, "session": "HANDSHAKE_SUCCEEDED" in names}
    found[f"{address} {with_keys}"] = met | {"answered": socket.poll(0) > 0}
print(json.dumps(found), flush=True)
os._exit(0)  # what was never sent is not waited for
"""


@pytest.fixture(scope="module")
def prober(resident: Person, witness: Witness, images: dict[str, str]) -> Prober:
    return Prober(witness, resident.namespace, images["core"])


@pytest.fixture(scope="module")
def enforced(prober: Prober, witness: Witness) -> None:
    """Proof that a NetworkPolicy means something here: a connection that works is cut by one."""
    server = prober.listens("server")
    assert prober.connects("before", [(server, 8080)]) == {f"{server}:8080": True}
    policy = {"podSelector": {"matchLabels": {"listens": "server"}}, "policyTypes": ["Ingress"]}
    deny = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny"}, "spec": policy}
    witness.apply(deny, namespace=prober.namespace)
    assert prober.connects("after", [(server, 8080)]) == {f"{server}:8080": False}, "policies are not enforced here"
    witness.delete("Pod", "server", prober.namespace, grace_s=0)


@pytest.fixture(scope="module")
def started(resident: Person, witness: Witness, images: dict[str, str]) -> Training:
    return start(resident, witness, images)


@pytest.fixture
def run(started: Training, explained: None) -> Training:
    return started


@pytest.mark.policy
@pytest.mark.usefixtures("enforced")
def test_a_stranger_in_the_namespace_reaches_no_port_of_a_run(run: Training, prober: Prober) -> None:
    everywhere = [(pod["status"]["podIP"], PORTS[port]) for pod in run.pods().values() for port in TCP]
    reached = prober.connects("stranger", everywhere)
    assert [where for where, yes in reached.items() if yes] == []


@pytest.mark.policy
@pytest.mark.usefixtures("enforced")
def test_an_actor_reaches_what_it_needs_and_nothing_else(run: Training, prober: Prober) -> None:
    allowed = {("manager", "rpc"), ("modelpool", "rpc"), ("modelpool", "notice"), ("learner", "experience")}
    roles = ("manager", "modelpool", "learner", "actor", "evaluator", "tensorboard")
    asked = {(role, port): (_address(run, role), PORTS[port]) for role in roles for port in TCP}
    api = ("kubernetes.default.svc", 443)
    found = prober.connects("train-actor-fake", [*asked.values(), api], labels=labels("train", "actor"))
    reached = {key for key, (host, port) in asked.items() if found[f"{host}:{port}"]}
    assert reached == allowed
    assert not found["kubernetes.default.svc:443"]


def test_a_pod_without_the_keys_of_the_run_gets_no_session(run: Training, prober: Prober) -> None:
    """It has the labels of an actor, so the network lets it through: the sockets themselves do not."""
    doors = [("manager", "rpc"), ("modelpool", "rpc"), ("modelpool", "notice"), ("learner", "experience")]
    addresses = [f"tcp://{_address(run, role)}:{PORTS[port]}" for role, port in doors]
    found = prober.run("train-actor-fake", KNOCK, json.dumps(addresses), labels=labels("train", "actor"))
    assert len(found) == 2 * len(doors)
    assert all(each["connected"] for each in found.values()), found
    assert not [where for where, each in found.items() if each["session"] or each["answered"]], found
    run.goes_on()


def test_what_listens_in_a_pod_is_known(run: Training, witness: Witness) -> None:
    """Of every pod: the sockets of its roles, all with keys, and the read-only probe; the control API on loopback.

    Port-forwards come in on loopback, and are as read-only there.
    """
    listening = {name: witness.listening(name, run.who.namespace) for name in run.pods()}
    probe = {("pod", PORTS["probe"]), ("loopback", PORTS["probe"])}
    expected = {
        "manager": {("pod", PORTS["rpc"]), ("loopback", PORTS["control"])} | probe,
        "modelpool": {("pod", PORTS["rpc"]), ("pod", PORTS["notice"])} | probe,
        "learner": {("pod", PORTS["experience"])} | probe,
        "actor": probe,
        "evaluator": probe,
        "tensorboard": {("anywhere", PORTS["tensorboard"])},
    }
    for name, found in listening.items():
        assert found == expected[name.split("-")[1]], name


def _address(run: Training, role: str) -> str:
    return str(next(iter(run.pods(role).values()))["status"]["podIP"])
