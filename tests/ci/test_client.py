"""The client of the verbs: who gets the token of this machine's owner, and by which way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from rlctl.errors import BackendUnreachable
from rlctl_ci.client import Client


class Heard(HTTPServer):
    """A program on loopback that refuses what comes, and keeps the credentials."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Refusing)
        self.credentials: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Refusing(BaseHTTPRequestHandler):
    server: Heard

    def do_POST(self) -> None:
        self.server.credentials.append(self.headers.get("Authorization", ""))
        self.send_response(401)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def heard() -> Iterator[Heard]:
    server = Heard()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a service of this user, with its token."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "rlctl" / "ci"
    folder.mkdir(parents=True)
    (folder / "token").write_text("owner\n")
    return folder


@pytest.mark.parametrize("address", ["", "http://127.0.0.1:1"])
def test_another_program_on_loopback_does_not_get_the_token_of_the_owner(
    state: Path, heard: Heard, address: str
) -> None:
    if address:
        (state / "address").write_text(f"{address}\n")
    with pytest.raises(BackendUnreachable) as refused:
        Client.of({}, heard.url, None).post("/x")
    assert heard.credentials == [""]
    assert f"the token in {state / 'token'} goes to its own service alone" in refused.value.hint
    way_out = f"--url {address}, or --token-file FILE" if address else "its next start says where that is"
    assert way_out in refused.value.hint


def test_the_service_of_this_machine_gets_it_and_no_proxy_does(
    state: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state / "address").write_text(f"{heard.url}\n")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    client = Client.of({}, f"{heard.url}/", None)
    with pytest.raises(BackendUnreachable, match="refuses"):
        client.post("/x")
    assert client.hook("/hooks", [], b"x")[0] == 401
    assert heard.credentials == ["Bearer owner", ""]
