"""The wire benchmark: what it sends, and its report."""

from __future__ import annotations

import pytest

from benchmarks import wire
from benchmarks.peers.contenders import OURS
from benchmarks.shared import store
from benchmarks.shared.store import Row
from rlctl.spec.schema import Spec
from rlctl_agents.acting.bootstrap import make_env
from rlctl_agents.algorithms.impala import Impala

SMALL = "cartpole, 16 streams"


@pytest.mark.parametrize(("task", "case"), [("pong", "pong, 32 streams"), ("cartpole", "cartpole, 256 streams")])
def test_the_largest_block_of_each_kind_is_what_the_product_sends(task: str, case: str) -> None:
    spec = Spec.model_validate({"run": "x", **OURS[task]})
    policy = spec.policy()
    env = make_env(spec, 1)
    found = wire.CASES[case]
    assert found.schema == Impala.schema(policy.algorithm, policy.model, env.spaces)
    assert found.streams == spec.roles.actor.envs
    env.close()


@pytest.mark.slow
def test_frames_of_pong_are_carried_once() -> None:
    block = wire.blocks(wire.CASES["pong, 8 streams"])
    assert block.fields["obs"].shape == (24, 8, 84, 84)
    assert block.fields["obs"].std() > 0


@pytest.mark.processes
@pytest.mark.parametrize("variant", [*wire.VARIANTS, wire.Variant("plain", plain=True)])
def test_every_message_of_a_transfer_arrives_and_both_ends_say_what_it_took(variant: wire.Variant) -> None:
    found = wire.transfer_of(wire.blocks(wire.CASES[SMALL]), variant, 40)
    assert min(found) > 0
    assert found.cpu_s == found.sender_cpu_s + found.receiver_cpu_s


@pytest.mark.processes
def test_one_cell_has_the_ratios_of_plain_transfers_taken_in_turn() -> None:
    case = wire.CASES[SMALL]._replace(messages=200)
    found = wire.beside_plain(case, wire.VARIANTS[0], wire.blocks(case), 1)
    assert found["mb_beside_plain"] == pytest.approx(found["mb_per_s"] / found["mb_per_s_plain"])
    both = found["cpu_s_per_gb_sender"] + found["cpu_s_per_gb_receiver"]
    assert found["cpu_beside_plain"] == pytest.approx(both / found["cpu_s_per_gb_plain"])


def test_the_table_has_ratios_of_speed_and_of_cpu_and_only_those_of_cells_that_count() -> None:
    keys = {"case": SMALL, "variant": "tcp", "bytes": 14352, "kept_cpu": True}
    values = [(True, 0.25, 4.0), (True, 0.35, 5.0), (False, 0.9, 6.0)]
    rows: list[Row] = [
        {name: store.as_text(value) for name, value in {**keys, "kept": kept, "mb_beside_plain": speed,
                                                        "cpu_beside_plain": cpu}.items()}
        for kept, speed, cpu in values
    ]  # fmt: skip
    text = "\n".join(wire.table(rows))
    assert "| cartpole, 16 streams, 14,352 bytes: tcp |" in text
    assert "0.3 (0.25-0.35; n 2, 1 discarded)" in text
    assert "5 (4-6; n 3)" in text
