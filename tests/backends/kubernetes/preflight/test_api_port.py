"""Whether the policy of managers lets them reach the API server."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.backends.kubernetes.preflight import api_port
from tests.backends.kubernetes.fakes.reads import Reads
from tests.backends.kubernetes.preflight.test_doctor import cluster, verdict

TEMPLATE = Path(__file__).parents[4] / "templates" / "kubernetes" / "networkpolicy.yaml.j2"


def test_the_template_allows_the_ports_that_the_check_knows() -> None:
    ports = ", ".join(f"{{protocol: TCP, port: {port}}}" for port in api_port.ALLOWED)
    assert f"- ports: [{ports}]" in TEMPLATE.read_text()


@pytest.mark.parametrize(("port", "told"), [(443, "ok"), (6443, "ok"), (8443, "warning"), (16443, "warning")])
def test_the_port_behind_the_service_is_what_counts(port: int, told: str) -> None:
    api = cluster()
    api.answers[api_port.SLICES] = {"items": [{"ports": [{"name": "https", "port": port}]}]}
    found = verdict(api, "API port")
    assert found[0] == told
    assert f"listens on port {port}" in found[1]


@pytest.mark.parametrize(
    ("server", "told"), [("https://a", []), ("https://a:6443", []), ("https://a:16443", ["not checked"])]
)
def test_without_the_right_to_look_only_an_unusual_address_is_told(server: str, told: list[str]) -> None:
    api = Reads()
    api.server = server
    assert [each.verdict for each in api_port.checks(api)] == told
