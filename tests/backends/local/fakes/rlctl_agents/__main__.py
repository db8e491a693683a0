"""Stands for every role: takes their command line, writes their log lines, answers as the manager, behaves as told.

Its run file may hold `behaviour`: {says, level, exc, exit_code, after_s, deaf, spawns, first_only, refuses}.
"""

import argparse
import ctypes
import http.server
import json
import os
import secrets
import signal
import socketserver
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

BOOT = secrets.token_hex(8)
STOP = threading.Event()


def die_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def say(options: argparse.Namespace, level: str, message: str, exc: str | None = None) -> None:
    line = {
        "ts": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "level": level, "run": "fake", "role": options.role, "id": options.name.replace("-", "/"), "boot": BOOT,
        "msg": message, "kv": {"pid": os.getpid()},
    }  # fmt: skip
    print(json.dumps({**line, "exc": exc} if exc else line), flush=True)


class Control(http.server.BaseHTTPRequestHandler):
    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, code: int, value: object) -> None:
        payload = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def do_GET(self) -> None:
        if self.path != "/status":
            self.answer(404, {"error": {"message": f"no {self.path} here"}})
            return
        self.answer(200, {"phase": "running", "boot": BOOT, "live": self.server.live})  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        if self.path == "/reload" and self.server.refuses:  # type: ignore[attr-defined]
            self.answer(409, {"error": {"message": self.server.refuses}})  # type: ignore[attr-defined]
            return
        if self.path == "/reload":
            self.server.read_live()  # type: ignore[attr-defined]
        self.answer(200, {"ok": True})
        if self.path == "/stop":
            self.server.finished.write_text("{}")  # type: ignore[attr-defined]
            STOP.set()


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def read_live(self) -> None:
        self.live = json.loads(Path(self.live_file).read_text())


def serve(options: argparse.Namespace, refuses: str) -> None:
    path = options.control.removeprefix("unix:")
    Path(path).unlink(missing_ok=True)
    server = Server(path, Control)
    server.live_file, server.refuses = options.live, refuses
    server.finished = Path(options.volume, "run", "finished.json")
    server.read_live()
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main() -> int:
    die_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("role")
    for option in ("name", "run-file", "manager", "probe", "volume", "addresses", "control", "live"):
        parser.add_argument(f"--{option}")
    options = parser.parse_args()
    behaviour = json.loads(Path(options.run_file).read_text()).get("behaviour", {})
    if not behaviour.get("deaf"):
        signal.signal(signal.SIGTERM, lambda *_: STOP.set())
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(options, "INFO", f"{options.name} starts")
    if options.control:
        serve(options, behaviour.get("refuses", ""))
    if behaviour.get("spawns"):
        heard = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # inherited: it outlasts SIGTERM
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "left behind by " + options.name])
        signal.signal(signal.SIGTERM, heard)
    if behaviour.get("first_only", options.name) == options.name and "after_s" in behaviour:
        time.sleep(behaviour["after_s"])
        if "says" in behaviour:
            say(options, behaviour.get("level", "ERROR"), behaviour["says"], behaviour.get("exc"))
        if behaviour.get("signal"):
            os.kill(os.getpid(), behaviour["signal"])
        return int(behaviour["exit_code"])
    while not STOP.wait(0.2):
        pass
    say(options, "INFO", f"{options.name} ends")
    return 0


if __name__ == "__main__":
    sys.exit(main())
