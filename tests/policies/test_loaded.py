"""Names that `rlctl_agents.load` takes or refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl_agents.policies.loaded import load


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("pole@", "pole@ names no model, as pole@best"),
        ("pole@bset", "pole@bset names no model"),
        ("pole@²", "names no model"),
        ("./model/policy.json", r"model/policy\.json is a file: name the folder"),
        ("./nothing", r"nothing holds no policy\.json"),
    ],
)
def test_what_names_no_model_is_told(named: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/policy.json").write_text("{}")
    with pytest.raises(LookupError, match=said):
        load(named)
