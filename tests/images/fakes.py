"""Builders that only write down what they are told, and a registry that holds one image."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlctl.images.builders.base import Ended

CONFIG = "sha256:" + "c" * 64
PUSHED = "sha256:" + "d" * 64


@dataclass
class FakePrograms:
    """A `Run`: keeps every command line and does of a builder what is seen from outside."""

    commands: list[list[str]] = field(default_factory=list)
    here: set[str] = field(default_factory=set)  # tags of images on this machine
    broken: dict[str, Ended] = field(default_factory=dict)  # a word of the command line -> how it ends

    def __call__(self, argv: Sequence[str], say: Callable[[str], object] | None = None) -> Ended:
        command = list(argv)
        self.commands.append(command)
        for word, ended in self.broken.items():
            if word in command:
                return ended
        if "build" in command:
            Path(command[command.index("--iidfile") + 1]).write_text(CONFIG)
            self.here.add(command[command.index("--tag") + 1])
        elif "inspect" in command:
            return Ended(0, (CONFIG.removeprefix("sha256:"),)) if command[-1] in self.here else Ended(125, ("no such",))
        elif "--digestfile" in command:
            Path(command[command.index("--digestfile") + 1]).write_text(PUSHED)
        elif command[:2] == ["docker", "push"]:
            return Ended(0, ("The push refers to repository", f"1.0: digest: {PUSHED} size: 1234"))
        return Ended(0, ("done",))

    def verbs(self) -> list[str]:
        """The second word of every command line."""
        return [command[1] for command in self.commands]


BELOW = "r.example.org/rlctl-actor@sha256:" + "0" * 64
LABELS = {"dev.rlctl.base": BELOW}


def encoded(content: Any) -> bytes:
    return json.dumps(content).encode()


CONFIGURATION = encoded({"config": {"Labels": LABELS}})
CONFIG_DIGEST = "sha256:" + hashlib.sha256(CONFIGURATION).hexdigest()
MANIFEST = encoded(
    {
        "config": {"digest": CONFIG_DIGEST, "size": len(CONFIGURATION)},
        "layers": [{"digest": "sha256:" + "1" * 64, "size": 100}, {"digest": "sha256:" + "2" * 64, "size": 11}],
    }
)
DIGEST = "sha256:" + hashlib.sha256(MANIFEST).hexdigest()


@dataclass
class FakeRegistry:
    """Answers to GET, and a door before them: the image team/rlctl-actor:1.0, which lies over BELOW."""

    door: str = ""  # "", basic, bearer
    host: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)  # path, Authorization
    images: dict[str, bytes] = field(default_factory=dict)  # further paths
    broken: bool = False  # it answers nobody

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, str], bytes]:
        self.asked.append((path, authorization))
        if self.broken:
            return 503, {}, b""
        if path.startswith("/token"):
            known = authorization == f"Basic {base64.b64encode(b'me:secret').decode()}"
            return 200, {}, encoded({"token": "good" if known else "anonymous"})
        if self.door == "basic" and not authorization.startswith("Basic "):
            return 401, {"WWW-Authenticate": 'Basic realm="here"'}, b""
        if self.door == "bearer" and authorization != "Bearer good":
            scope = "repository:team/rlctl-actor:pull"
            realm = f'Bearer realm="http://{self.host}/token",service="s",scope="{scope}"'
            return (403 if authorization else 401), {"WWW-Authenticate": realm}, b""
        body = {
            "/v2/team/rlctl-actor/manifests/1.0": MANIFEST,
            f"/v2/team/rlctl-actor/manifests/{DIGEST}": MANIFEST,
            f"/v2/team/rlctl-actor/blobs/{CONFIG_DIGEST}": CONFIGURATION,
            "/v2/team/page/manifests/latest": b"<html>",
            **self.images,
        }.get(path)
        return (404, {}, b"{}") if body is None else (200, {}, body)
