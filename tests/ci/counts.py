"""Counts that a test has made: printed, and kept in the folder that RLCTL_TEST_CAPTURES names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def tell(name: str, counts: dict[str, Any]) -> None:
    """Print them; where captures are kept, also `NAME.json` there."""
    text = json.dumps(counts, indent=1)
    print(f"{name}: {text}")
    if folder := os.environ.get("RLCTL_TEST_CAPTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{name}.json").write_text(text + "\n")
