"""Failures as an API server tells them, from files."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from rlctl.backends.kubernetes.diagnose.causes.base import RelatedObjects, indexed

FIXTURES = Path(__file__).parent / "fixtures" / "explain"
HOST = "registry.example.com"
ACTOR = f"{HOST}/team/rlctl-actor@sha256:4b7e0c6e5d1f4a27b0f1c35d8f2a9e61c7d04e8b93a2f6150e7c9b3d2a8f6e14"
LOCAL = ACTOR.replace(HOST, "127.0.0.1:5000")


def read(name: str) -> tuple[dict[str, Any], RelatedObjects]:
    whole = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))
    claims = {claim["metadata"]["name"]: claim for claim in whole.get("claims", ())}
    now = datetime.fromisoformat(whole["now"])
    return whole, RelatedObjects(now, indexed(whole.get("events", ())), claims, whole.get("logs", {}))
