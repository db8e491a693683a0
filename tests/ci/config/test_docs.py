"""docs/ci.md says what is: every key with its default, and files that can be used as they stand there."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from rlctl_ci.builders.source import spec_at
from rlctl_ci.config.manifest import manifest
from rlctl_ci.config.settings import Config, Project, load
from tests.ci.world import project

TEXT = (Path(__file__).parents[3] / "docs" / "ci.md").read_text()
FILES = [textwrap.dedent(found) for found in re.findall(r"^ *```yaml\n(.*?)^ *```$", TEXT, re.DOTALL | re.MULTILINE)]


def documented(text: str) -> dict[str, str]:
    """Key -> what the table has as its default."""
    found = {}
    for keys, default in re.findall(r"^\| (`[^|]+`) \| ([^|]*?) ?\| .* \|$", text, re.MULTILINE):
        for key in re.findall(r"`([^`]+)`", keys):
            found[key] = default.strip("` ")
    return found


def keys(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, Any]]:
    """Key -> its default; of a section what it holds."""
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from keys(type(field.default), f"{name}.")
        else:
            yield f"{above}{name}", field.default


@pytest.mark.parametrize(("model", "heading"), [(Config, "Of the service:"), (Project, "Of each project")])
def test_every_key_is_in_the_table_with_its_default(model: type[BaseModel], heading: str) -> None:
    told = documented(
        TEXT.partition("## All keys")[2].partition(heading)[2].partition("\nOf ")[0].partition("\n## ")[0]
    )
    schema = dict(keys(model))
    assert list(told) == [*filter(told.__contains__, schema)], "in the order of the schema, and nothing else"
    assert set(told) == set(schema)
    for key, default in schema.items():
        shown = "needed" if default is PydanticUndefined else default
        assert (yaml.safe_load(told[key]) if told[key] else None) == shown, key


def test_the_examples_can_be_used_as_they_stand_there(tmp_path: Path) -> None:
    first, on_cluster = FILES
    path = tmp_path / "ci.yaml"
    path.write_text(first)
    assert load(path).projects["pole"].secret_file == tmp_path / "secret"
    path.write_text(on_cluster)
    about = load(path)
    assert manifest(about, namespace="team", image="r/x@sha256:" + "0" * 64, host="ci.example.org")
    assert about.projects["pole"].git_token_file == Path("/etc/rlctl-ci/secrets/git-token")


@pytest.mark.parametrize(("sets", "lr"), [([], 0.001), (["algorithm.lr=0.002"], 0.002)])
def test_a_push_deploys_the_spec_of_the_commit_and_what_sets_has_on_top_of_it(
    tmp_path: Path, sets: list[str], lr: float
) -> None:
    text = "run: pole\nenv: {id: CartPole-v1}\nalgorithm: {name: impala, lr: 0.001}\n"
    (tmp_path / "spec.yaml").write_text(text)
    (tmp_path / "images.yaml").write_text("images: {core: elsewhere}\n")
    spec, _ = spec_at(project(sets=sets), tmp_path)
    assert (spec.algorithm and spec.algorithm.lr, spec.images.core) == (lr, None)  # type: ignore[union-attr]
