"""Which documents a change of the spec alters; whatever it leaves alone, no pod is restarted for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.render.cluster import VARIATIONS, rendered, spec_of
from tests.spec.full import IMAGES, image


def texts(**more: Any) -> dict[str, str]:
    return {document.name: document.text for document in rendered(spec_of(**more))}


def altered(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


@pytest.mark.parametrize("name", sorted(VARIATIONS))
def test_rendered_twice_every_byte_is_the_same(name: str) -> None:
    once, again = rendered(spec_of(**VARIATIONS[name])), rendered(spec_of(**VARIATIONS[name]))
    assert once == again


def test_more_actors_alter_no_document() -> None:
    few, many = texts(roles={"actor": {"replicas": 1}}), texts(roles={"actor": {"replicas": 999}})
    assert few == many


def test_more_actors_than_fit_add_a_deployment_and_restart_nobody() -> None:
    few, many = texts(roles={"actor": {"replicas": 900}}), texts(roles={"actor": {"replicas": 1100}})
    assert altered(few, many) == {
        "deployment-pong-actor-1.yaml", "configmap-pong-live.yaml", "role-pong-manager.yaml",
    }  # fmt: skip


def test_a_new_learning_rate_alters_what_the_learner_reads_and_nothing_else() -> None:
    before, after = texts(algorithm={"lr": 1e-4}), texts(algorithm={"lr": 1e-3})
    names = altered(before, after)
    assert {name.partition("-pong-")[0] + " " + name.split("-")[2].removesuffix(".yaml") for name in names} == {
        "configmap learner",
        "statefulset learner",
    }
    assert len(names) == 3  # the run file of before goes, another comes


def test_stop_conditions_alter_what_the_manager_reads_alive_and_nothing_else() -> None:
    assert altered(texts(), texts(stop={"eval_return": 20})) == {"configmap-pong-live.yaml"}


def test_a_new_image_alters_the_roles_that_run_from_it() -> None:
    names = altered(texts(), texts(images={**IMAGES, "core": image("newer")}))
    assert {name.split("-")[2].removesuffix(".yaml") for name in names} == {"manager", "modelpool", "tensorboard"}


def test_no_image_that_may_hold_code_of_a_commit_runs_but_in_the_roles_that_import_it() -> None:
    for name in ("actor", "learner"):
        names = altered(texts(), texts(images={**IMAGES, name: image("newer")}))
        roles = {name.split("-")[2].removesuffix(".yaml") for name in names}
        assert roles == {"learner": {"learner"}, "actor": {"actor", "evaluator"}}[name]


def test_exposing_the_pages_restarts_nothing() -> None:
    from tests.render.cluster import EXPOSED

    before, after = texts(), texts(kubernetes=EXPOSED)
    assert all(after[name] == text for name, text in before.items())
    assert len(after) > len(before)


def test_a_larger_volume_alters_the_claim_alone() -> None:
    assert altered(texts(), texts(storage={"size": "60Gi"})) == {"persistentvolumeclaim-pong-volume.yaml"}
