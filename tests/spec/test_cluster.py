"""Faults that only a cluster has."""

import re
from pathlib import Path

import pytest

from rlctl.changes import changes
from rlctl.image_names import IMAGE, Reference
from rlctl.plan import make
from rlctl.spec import names
from rlctl.spec.schema import Spec
from tests.spec.conftest import Lint, Load
from tests.spec.full import IMAGES, image

TOP = "run: a\nenv: {id: CartPole-v1}\nstop: {agent_steps: 1000}\ntarget: kubernetes\n"
MADE = f"images: {{core: '{IMAGES['core']}', actor: '{IMAGES['actor']}', learner: '{IMAGES['learner']}'}}\n"


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "storage: {claim: shared}",
        "storage: {class: nfs, size: 1Ti}",
        "kubernetes: {expose: loadbalancer, source_ranges: [203.0.113.0/24], proxy: {image: '" + image("p") + "'}}",
        "kubernetes: {gang: kueue, queue: gpus}",
        "roles: {actor: {replicas: 10000, max_replicas: 20000}, learner: {gpu: 1}, manager: {memory: 3Gi},"
        " modelpool: {memory: 8Gi}}\nalgorithm: {batch_size: 10000000}",
    ],
)
def test_a_spec_for_a_cluster_is_accepted(lint: Lint, lines: str) -> None:
    assert lint(TOP + MADE + lines) == []


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (
            "storage: {path: x}",
            "6:11: storage.path: is for one machine; on a cluster give `claim`, or `class` and `size`, or nothing",
        ),
        (
            "storage: {claim: shared, class: nfs}",
            "6:26: storage.class: `claim: shared` has one already; remove one of them",
        ),
        (
            "storage: {claim: shared, size: 1Gi}",
            "6:26: storage.size: `claim: shared` has one already; remove one of them",
        ),
        (
            "kubernetes: {gang: kueue}",
            "6:1: kubernetes.queue: kueue needs the name of a LocalQueue, as in `queue: gpus`",
        ),
        (
            "kubernetes: {expose: loadbalancer, source_ranges: [0.0.0.0/1], proxy: {image: '" + image("p") + "'}}",
            "6:52: kubernetes.source_ranges.0: 0.0.0.0/1 is much of the Internet; name the ranges that may call",
        ),
    ],
)
def test_what_cannot_work_on_a_cluster_is_refused(lint: Lint, lines: str, fault: str) -> None:
    assert lint(TOP + MADE + lines) == [f"spec.yaml:{fault}"]


def test_ranges_of_which_one_is_wrong_are_not_called_missing(lint: Lint) -> None:
    section = "{expose: loadbalancer, source_ranges: [here], proxy: {image: '" + image("p") + "'}}"
    (fault,) = lint(TOP + MADE + f"kubernetes: {section}")
    assert ": kubernetes.source_ranges.0: " in fault


def test_a_load_balancer_needs_a_proxy_and_known_callers(lint: Lint) -> None:
    assert lint(TOP + MADE + "kubernetes: {expose: loadbalancer}") == [
        "spec.yaml:6:1: kubernetes.proxy: loadbalancer needs a proxy that authenticates callers, as in `proxy: {image:"
        " ..., args: [...]}`",
        "spec.yaml:6:1: kubernetes.source_ranges: loadbalancer needs the ranges that may call, as in `source_ranges:"
        " [203.0.113.0/24]`",
    ]


@pytest.mark.parametrize(
    ("roles", "findings"),
    [
        ("{actor: {max_replicas: 2048}}", []),
        ("{actor: {max_replicas: 2049}}",
         ["6:1: roles.manager.memory: 512Mi, but with up to 2,049 actors it needs 768Mi",
          "6:1: roles.modelpool.memory: 1Gi, but with up to 2,049 actors it needs 1280Mi"]),
        ("{actor: {max_replicas: 10000}, modelpool: {replicas: 6}}",
         ["6:1: roles.manager.memory: 512Mi, but with up to 10,000 actors it needs 1536Mi"]),
        ("{actor: {max_replicas: 10000}, manager: {memory: 1536Mi}, modelpool: {replicas: 2, memory: 4Gi}}", []),
        ("{actor: {max_replicas: 10000}, manager: {memory: 1536Mi}, modelpool: {memory: 3Gi}}",
         ["6:78: roles.modelpool.memory: 3Gi, but with up to 10,000 actors it needs 4096Mi"]),
    ],
)  # fmt: skip
def test_less_memory_than_so_many_actors_need_is_a_finding(lint: Lint, roles: str, findings: list[str]) -> None:
    assert lint(TOP + MADE + f"roles: {roles}") == [f"spec.yaml:{one}" for one in findings]


@pytest.mark.parametrize(
    ("lines", "finding"),
    [
        ("{queue: gpus}", "6:14: kubernetes.queue: has no effect without `gang: kueue`"),
        (
            "{source_ranges: [10.0.0.0/8]}",
            "6:14: kubernetes.source_ranges: has no effect without `expose: loadbalancer`",
        ),
        (
            "{proxy: {image: '" + image("p") + "'}}",
            "6:14: kubernetes.proxy: has no effect without `expose: loadbalancer`",
        ),
    ],
)
def test_what_has_no_effect_is_a_finding(lint: Lint, lines: str, finding: str) -> None:
    assert lint(TOP + MADE + f"kubernetes: {lines}") == [f"spec.yaml:{finding}"]


def test_every_missing_image_is_named_at_once(lint: Lint) -> None:
    words = "; `rlctl image build` and `rlctl image push` make them"
    assert lint(TOP) == [f"spec.yaml:1:1: images: a cluster needs an image for core, actor and learner{words}"]
    assert lint(TOP + f"images: {{actor: '{IMAGES['actor']}'}}") == [
        f"spec.yaml:5:1: images: a cluster needs an image for core and learner{words}"
    ]


def test_on_one_machine_nobody_asks_for_images(lint: Lint) -> None:
    assert lint(TOP.replace("target: kubernetes\n", "")) == []


def test_a_name_that_no_service_can_have_is_refused_on_a_cluster_only(lint: Lint) -> None:
    assert lint(TOP.replace("run: a", "run: '2048'") + MADE) == [
        "spec.yaml:1:1: run: on a cluster it begins with a letter, because Services do, got '2048'"
    ]
    assert lint(TOP.replace("run: a", "run: '2048'").replace("target: kubernetes\n", "")) == []


def test_a_class_comes_back_from_the_stored_spec_under_its_own_name(load_text: Load) -> None:
    spec = load_text(TOP + MADE + "storage: {class: nfs}").spec
    assert spec.storage.class_ == "nfs"
    assert spec.model_dump(mode="json")["storage"]["class"] == "nfs"
    assert Spec.model_validate(spec.model_dump(mode="json")) == spec


def test_a_class_can_be_set_on_the_command_line(load_text: Load) -> None:
    assert load_text(TOP + MADE, sets=("storage.class=nfs",)).spec.storage.class_ == "nfs"


@pytest.mark.parametrize(
    "reference",
    [image("a"), "a@sha256:" + "0" * 64, "localhost:5000/a/b-c__d.e@sha256:" + "f" * 64, "a:1.0@sha256:" + "0" * 64],
)
def test_an_image_by_digest_is_one(reference: str) -> None:
    assert re.match(IMAGE, reference)
    assert Spec.model_validate({"run": "a", "env": {"id": "b"}, "images": {"core": reference}})


@pytest.mark.parametrize("reference", ["a:1", "localhost:5000/a/b:1.0-rc_1", "registry.example.org/a:2026", "a/b:x"])
def test_an_image_may_be_named_by_tag_and_that_of_a_proxy_may_not(reference: str) -> None:
    spec = {"run": "a", "env": {"id": "b"}, "images": {"core": reference}}
    assert Spec.model_validate(spec).images.core == reference
    assert Reference.parse(reference).tag
    with pytest.raises(ValueError, match=r"kubernetes\.proxy\.image"):
        Spec.model_validate({**spec, "kubernetes": {"proxy": {"image": reference}}})


@pytest.mark.parametrize(
    ("reference", "pulled"),
    [
        (f"r.example:5000/a/b:1.0@sha256:{'0' * 64}", f"r.example:5000/a/b@sha256:{'0' * 64}"),
        (f"a:1.0@sha256:{'0' * 64}", f"a@sha256:{'0' * 64}"),
        (f"r.example:5000/b@sha256:{'0' * 64}", f"r.example:5000/b@sha256:{'0' * 64}"),
    ],
)
def test_pods_name_their_image_by_digest_alone(reference: str, pulled: str) -> None:
    spec = {"run": "a", "env": {"id": "b"}, "target": "kubernetes", "images": {**IMAGES, "core": reference}}
    plan = make(Spec.model_validate(spec), uid="0" * 32, base=Path("/base"))
    assert plan.roles[0].image == pulled


def test_another_tag_of_the_same_image_restarts_nobody_and_is_told() -> None:
    def spec(tag: str, digit: str) -> Spec:
        core = f"r.example/core:{tag}@sha256:{digit * 64}"
        return Spec.model_validate(
            {"run": "a", "env": {"id": "b"}, "target": "kubernetes", "images": {**IMAGES, "core": core}}
        )

    (change,) = changes(spec("1.0-rc", "0"), spec("1.0", "0"))
    assert (change.role, change.action) == ("", "live")
    assert change.why == (
        "images.core: r.example/core:1.0-rc@sha256:000000000000... -> r.example/core:1.0@sha256:000000000000..."
    )
    hashes = [{role.hash for role in make(spec(tag, "0"), uid="0" * 32, base=Path("/")).roles} for tag in ("1", "2")]
    assert hashes[0] == hashes[1]
    assert [change.role for change in changes(spec("1.0", "0"), spec("1.0", "1"))] == ["manager", "modelpool"]


@pytest.mark.parametrize(
    "reference",
    ["a", "a:", "a:.x", "a:1@sha256:0", "a@sha256:" + "0" * 63, "A/B@sha256:" + "0" * 64, "a b@sha256:" + "0" * 64,
     "@sha256:" + "0" * 64],
)  # fmt: skip
def test_what_is_no_image_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match="images"):
        Spec.model_validate({"run": "a", "env": {"id": "b"}, "images": {"core": reference}})


def test_on_a_cluster_every_role_has_its_image_and_actors_their_most() -> None:
    spec = Spec.model_validate({"run": "a", "env": {"id": "b"}, "target": "kubernetes", "images": IMAGES})
    plan = make(spec, uid="0" * 32, base=Path("/base"))
    assert {role.role: role.image for role in plan.roles} == {
        "manager": IMAGES["core"],
        "modelpool": IMAGES["core"],
        "learner": IMAGES["learner"],
        "actor": IMAGES["actor"],
        "evaluator": IMAGES["actor"],
    }
    assert [role.most for role in plan.roles] == [0, 0, 0, 1000, 0]
    assert plan.base == "/base"
    on_one_machine = make(spec.model_copy(update={"target": "local"}), uid="0" * 32, base=Path("/base"))
    assert {role.image for role in on_one_machine.roles} == {None}


@pytest.mark.parametrize(
    ("replicas", "shards", "each"),
    [(0, 1, [0]), (1, 1, [1]), (1000, 1, [1000]), (2300, 3, [1000, 1000, 300]), (5, 3, [5, 0, 0])],
)
def test_the_first_shards_are_filled_first(replicas: int, shards: int, each: list[int]) -> None:
    assert names.spread(replicas, shards) == each


@pytest.mark.parametrize(("most", "shards"), [(0, 1), (1, 1), (1000, 1), (1001, 2), (10_000, 10), (100_000, 100)])
def test_a_shard_holds_at_most_a_thousand(most: int, shards: int) -> None:
    assert names.shards(most) == shards
