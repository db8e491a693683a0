"""The service as `rlctl ci manifest` puts it on a cluster: few rights, no root, and it redeploys all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.ci import https_forge
from tests.cluster.support.people import Person
from tests.cluster.support.specs import spec
from tests.cluster.support.training import Training
from tests.cluster.support.witness import Object, Witness, is_ready

pytestmark = [pytest.mark.smoke, pytest.mark.nodes, pytest.mark.rwx, pytest.mark.registry, pytest.mark.psa]

HOOK: Final = "the secret of the forge in this namespace"
CONFIG: Final = "/etc/rlctl-ci/config/ci.yaml"
SECRETS: Final = "/etc/rlctl-ci/secrets"
HOST: Final = "rlctl-ci"
COMMIT: Final = """
import os, pathlib, subprocess, sys
def git(*words):
    who = ["-c", "user.name=ana", "-c", "user.email=a@b"]
    return subprocess.run(["git", *who, *words], stdout=subprocess.PIPE, check=True).stdout.decode().strip()
pathlib.Path("/srv/copy").mkdir(exist_ok=True)
os.chdir("/srv/copy")
git("init", "-q", "-b", "main")
pathlib.Path("spec.yaml").write_text(sys.argv[1])
git("add", "-A")
git("commit", "-q", "-m", "a change")
git("push", "-q", "/srv/train.git", "main")
print(git("rev-parse", "HEAD"))
"""


@pytest.fixture
def service(ana: Person, witness: Witness, service_image: str) -> str:
    """The name of its pod, which has become ready by what docs/ci.md says; the forge beside it is a pod as well."""
    cert, key = https_forge.certificate("forge")
    project = {
        "forge": "gitea", "repository": "https://forge/train.git", "secret_file": f"{SECRETS}/hook", "run": "train",
        "target": "kubernetes", "builder": "none",
        "verify": {"ready_within_s": 120, "watch_s": 3, "min_throughput": 0.01},
    }  # fmt: skip
    config = {"listen": "0.0.0.0:8710", "hosts": [HOST], "behind_tls": True, "projects": {"train": project}}
    held = {"rlctl-ci-secrets": {"hook": HOOK, "ca.crt": cert}, "forge": {"cert.pem": cert, "key.pem": key}}
    documents = [
        {"kind": "ConfigMap", "metadata": {"name": "rlctl-ci-config"}, "data": {"ci.yaml": yaml.safe_dump(config)}},
        *({"kind": "Secret", "metadata": {"name": name}, "stringData": data} for name, data in held.items()),
        {"kind": "Service", "metadata": {"name": "forge"},
         "spec": {"selector": {"app": "forge"}, "ports": [{"port": 443, "targetPort": 8443}]}},
        _forge(service_image),
    ]  # fmt: skip
    witness.apply(*({"apiVersion": "v1", **document} for document in documents), namespace=ana.namespace)

    ana.writes("ci.yaml", config)
    printed = ana("ci", "manifest", "-n", ana.namespace, "--image", service_image, "--host", HOST).stdout
    for document in yaml.safe_load_all(printed):
        if document["kind"] == "StatefulSet":  # as a site with an authority of its own does it
            container = document["spec"]["template"]["spec"]["containers"][0]
            container["env"].append({"name": "SSL_CERT_FILE", "value": f"{SECRETS}/ca.crt"})
        witness.apply(document)

    def ready(pods: dict[str, Object]) -> bool:
        return {"rlctl-ci-0", "forge"} <= {name for name, pod in pods.items() if is_ready(pod)}

    witness.until("Pod", ana.namespace, ready, what="the service and its forge", timeout_s=180)
    return "rlctl-ci-0"


def test_a_service_with_its_own_account_alone_redeploys_a_run_that_a_person_has_started(
    ana: Person, witness: Witness, images: dict[str, str], service: str
) -> None:
    first = spec("train", images=images)
    file = ana.writes("train.yaml", first)
    ana("up", file, "--wait", "--timeout", "4m", timeout_s=300)
    run = Training(ana, witness, "train", file)
    ana("wait", "train", "--for", "consumed_steps=2000", "--timeout", "2m", timeout_s=180)
    uid, steps, before = run.status()["uid"], run.steps(), run.uids("learner", "actor", "manager", "modelpool")

    changed = {**first, "algorithm": {**first["algorithm"], "lr": 5e-4}}
    in_forge = _Inside(witness, ana.namespace, "forge")
    commit = in_forge.run("python", "-c", COMMIT, yaml.safe_dump(changed)).strip()
    said = in_forge.run("rlctl", "ci", "test-hook", "train", "--sha", commit, "--url", f"http://{HOST}", "-c", CONFIG)
    build = str(json.loads(said.partition(" ")[2])["build_id"])

    # as docs/ci.md says: the first token comes from inside, and is good at once
    token = _Inside(witness, ana.namespace, service).run(
        "rlctl", "ci", "token", "ana", "--scope", "admin", "-c", CONFIG
    )
    in_forge.run("sh", "-c", 'printf %s "$1" > /srv/token', "sh", token.strip())
    mine = ("--url", f"http://{HOST}", "--token-file", "/srv/token")
    log = in_forge.run("rlctl", "ci", "log", build, "-f", *mine, timeout_s=240)
    listed = json.loads(in_forge.run("rlctl", "ci", "builds", *mine, "-o", "json"))["builds"]
    assert [one["state"] for one in listed] == ["succeeded"], log

    run.goes_on()
    after = run.uids("learner", "actor", "manager", "modelpool")
    assert {name for name in after if after[name] != before.get(name)} == {"train-learner-0"}
    status = run.status()
    assert status["uid"] == uid
    assert status["resumed"]["steps"] > 0
    assert status["totals"]["consumed_steps"] > steps
    assert status["revision"] == 2


class _Inside:
    """Runs programs inside a pod."""

    def __init__(self, witness: Witness, namespace: str, pod: str) -> None:
        self._witness, self._namespace, self._pod = witness, namespace, pod

    def run(self, *command: str, timeout_s: float = 60.0) -> str:
        return self._witness.run(self._pod, self._namespace, *command, timeout_s=timeout_s)


def _forge(image: str) -> dict[str, Any]:
    """A pod with a repository that it serves, and with what a forge knows of the service."""
    script = Path(https_forge.__file__).read_text()
    made = 'git init -q --bare -b main /srv/train.git && exec python -c "$0" /srv /tls/cert.pem /tls/key.pem 8443'
    container = {
        "name": "forge", "image": image, "command": ["sh", "-c", made, script],
        "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "srv", "mountPath": "/srv"}, {"name": "tls", "mountPath": "/tls"},
            {"name": "config", "mountPath": str(Path(CONFIG).parent)}, {"name": "secrets", "mountPath": SECRETS},
        ],
    }  # fmt: skip
    volumes = [
        {"name": "srv", "emptyDir": {}}, {"name": "tls", "secret": {"secretName": "forge"}},
        {"name": "config", "configMap": {"name": "rlctl-ci-config"}},
        {"name": "secrets", "secret": {"secretName": "rlctl-ci-secrets"}},
    ]  # fmt: skip
    who = {"runAsNonRoot": True, "runAsUser": 10001, "fsGroup": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {
        "automountServiceAccountToken": False, "enableServiceLinks": False, "terminationGracePeriodSeconds": 1,
        "securityContext": who, "containers": [container], "volumes": volumes,
    }  # fmt: skip
    return {"kind": "Pod", "metadata": {"name": "forge", "labels": {"app": "forge"}}, "spec": pod}
