"""Pods that try to reach others, as the administrator starts them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.cluster.support.witness import Object, Witness, is_ready

CONNECT: Final = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor

def reaches(where):
    try:
        socket.create_connection(where, timeout=9).close()  # a lost packet is sent again after 1, 3 and 7 s
        return True
    except OSError:
        return False

asked = [tuple(where) for where in json.loads(sys.argv[1])]
with ThreadPoolExecutor(len(asked)) as pool:
    print(json.dumps({f"{host}:{port}": found for (host, port), found in zip(asked, pool.map(reaches, asked))}))
"""
LISTEN: Final = (
    "import http.server; http.server.HTTPServer(('', 8080), http.server.SimpleHTTPRequestHandler).serve_forever()"
)


@dataclass(frozen=True)
class Prober:
    """Starts pods of one namespace from an image that has Python."""

    witness: Witness
    namespace: str
    image: str

    def run(self, name: str, script: str, *arguments: str, labels: Mapping[str, str] | None = None) -> Any:
        """A pod runs a script to its end, and is deleted; returns the JSON that it printed last."""
        self.witness.apply(self._pod(name, script, arguments, labels or {}), namespace=self.namespace)

        def over(pods: dict[str, Object]) -> bool:
            return (pods[name].get("status") or {}).get("phase") in ("Succeeded", "Failed")

        try:
            found = self.witness.until("Pod", self.namespace, over, what=f"pod {name} to end", timeout_s=120)
            said = self.witness.log(name, self.namespace)
        except AssertionError as error:
            raise AssertionError(f"{error}\nit wrote:\n{self.witness.log(name, self.namespace)}") from None
        finally:
            self.witness.delete("Pod", name, self.namespace, grace_s=0)
        assert found[name]["status"]["phase"] == "Succeeded", said
        return json.loads(said.strip().splitlines()[-1])

    def connects(
        self, name: str, to: Sequence[tuple[str, int]], labels: Mapping[str, str] | None = None
    ) -> dict[str, bool]:
        """From a pod of that name and these labels: "host:port" -> whether a connection is made."""
        found: dict[str, bool] = self.run(name, CONNECT, json.dumps(list(to)), labels=labels)
        return found

    def listens(self, name: str) -> str:
        """A pod that answers on port 8080; returns its address."""
        self.witness.apply(self._pod(name, LISTEN, (), {"listens": name}), namespace=self.namespace)
        pods = self.witness.until(
            "Pod", self.namespace, lambda pods: is_ready(pods[name]), what=f"pod {name}", timeout_s=120
        )
        return str(pods[name]["status"]["podIP"])

    def _pod(self, name: str, script: str, arguments: Sequence[str], labels: Mapping[str, str]) -> Object:
        allowed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        container: Object = {"name": "main", "image": self.image, "command": ["python", "-c", script, *arguments]}
        container |= {"securityContext": allowed, "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}}
        if script == LISTEN:
            container["readinessProbe"] = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
        spec: Object = {
            "restartPolicy": "Never", "automountServiceAccountToken": False, "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1, "containers": [container],
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
        }  # fmt: skip
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": dict(labels)}, "spec": spec}
