from pathlib import Path

import pytest

from rlctl.spec.algorithms import Replayed
from rlctl.spec.schema import ReplayBuffer, Spec
from tests.spec.conftest import Lint

TOP = "run: a\nenv: {id: CartPole-v1}\nstop: {agent_steps: 1000}\n"


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (
            "algorithm: {unroll_length: 32, batch_size: 20}\nroles: {actor: {envs: 1}}",
            "4:32: algorithm.batch_size: must be a multiple of unroll_length, got 20 = 0 x 32 + 20; choose 32",
        ),
        (
            "algorithm: {c_max: 1.5}",
            "4:13: algorithm.c_max: must not exceed rho_max, got c_max 1.5 > rho_max 1",
        ),
        (
            "algorithm: {name: appo, c_max: 1.5}",
            "4:25: algorithm.c_max: must not exceed rho_max, got c_max 1.5 > rho_max 1",
        ),
        (
            "algorithm: {value_batches: 4}\nmodel: {share: true}",
            "4:13: algorithm.value_batches: is for a value that shares nothing with the policy: must be auto or 0, or"
            " model.share false, got 4",
        ),
        (
            "algorithm: {value_batches: 4}\nmodel: {core: gru}",
            "4:13: algorithm.value_batches: is for a value that shares nothing with the policy: must be auto or 0,"
            " got 4",
        ),
        (
            "algorithm: {value_batches: 4}\nmodel: {torso: nature_cnn}",
            "4:13: algorithm.value_batches: is for a value that shares nothing with the policy: must be auto or 0, or"
            " model.share false, got 4",
        ),
        (
            "algorithm: {value_batches: 9, buffer_batches: 7}",
            "4:31: algorithm.buffer_batches: must be at least value_batches - 1 = 8, got 7",
        ),
        (
            "algorithm: {name: ppo, unroll_length: 128, batch_size: 8192}\nmodel: {core: lstm}\n"
            "roles: {learner: {replicas: 4}, actor: {replicas: 4}}",
            "4:1: algorithm.minibatch_size: must be at least a segment for each learner where model.core is lstm,"
            " unroll_length x roles.learner.replicas = 128 x 4 = 512, got 256",
        ),
        (
            "algorithm: {name: appo, minibatch_size: 1000}",
            "4:25: algorithm.minibatch_size: must not exceed batch_size, got 1000 > 512",
        ),
        (
            "algorithm: {name: appo, reuse: 5, buffer_batches: 2}",
            "4:25: algorithm.reuse: must be at most buffer_batches or a multiple of it, got 5 = 2 x 2 + 1; choose 4"
            " or 6",
        ),
        (
            "algorithm: {name: ppo, batch_size: 1000}",  # what it is to choose is accepted then
            "4:24: algorithm.batch_size: must hold whole blocks of an actor for each learner, roles.actor.envs x"
            " unroll_length = 16 x 32 = 512 steps, or the rest of a block is dropped; got 1000; choose 512 or 1024",
        ),
        (
            "sync: true\nalgorithm: {name: ppo, batch_size: 1000}",
            "5:24: algorithm.batch_size: must be a multiple of unroll_length, got 1000 = 31 x 32 + 8; choose 992 or"
            " 1024",
        ),
        (
            "algorithm: {weight_decay: 0.01}",
            "4:13: algorithm.weight_decay: is of optimizer adamw, got 0.01 with adam",
        ),
        (
            "algorithm: {name: ppo, clip_schedule: {agent_steps: 9, final: 2}}",
            "4:56: algorithm.clip_schedule.final: must be at most 1, got 2",
        ),
        (
            "algorithm: {lr_schedule: {agent_steps: 9, final: 2}}",
            "4:43: algorithm.lr_schedule.final: must be at most 1, got 2",
        ),
        (
            "algorithm: {rho_max: 0.5}",  # c_max is not given: the place is that of the section
            "4:1: algorithm.c_max: must not exceed rho_max, got c_max 1 > rho_max 0.5",
        ),
        (
            "roles: {actor: {replicas: 9, max_replicas: 8}}",
            "4:30: roles.actor.max_replicas: must be at least roles.actor.replicas, got 8 < 9",
        ),
        ("replay: {}", "4:1: replay: not used by impala; remove it"),
        (
            "algorithm: {name: 'mine:Mine'}\ncode: {path: .}\nroles: {replay: {replicas: 2}}",
            "6:9: roles.replay: not used by mine:Mine; remove it",
        ),
        (
            "sync: true\nroles: {actor: {envs: 8}}",  # of the defaults, 16, it is
            "1:1: algorithm.batch_size: with sync a batch is one segment of every environment: actors x envs x"
            " unroll_length = 1 x 8 x 20 = 160 rows, got 320",
        ),
        (
            "sync: true\nalgorithm: {batch_size: 320, publish_every_updates: 2}",
            "5:30: algorithm.publish_every_updates: with sync the actors need every version: must be 1, got 2",
        ),
        (
            "algorithm: {name: ppo, publish_every_updates: 2}",
            "4:24: algorithm.publish_every_updates: must be at most max_lag_versions + 1 = 1, got 2: actors would wait"
            " for weights, and the learner for segments of newer ones",
        ),
        (
            "sync: true\nalgorithm: {batch_size: 640}\nroles: {learner: {replicas: 2}, actor: {replicas: 2}}",
            "6:19: roles.learner.replicas: with sync there is exactly one learner, got 2",
        ),
        (
            "sync: true\nalgorithm: {batch_size: 320}\nroles: {modelpool: {replicas: 3}}",
            "6:21: roles.modelpool.replicas: with sync the actors need every version, and pools below the first leave"
            " some out: must be 1, got 3",
        ),
        (
            "roles: {learner: {replicas: 2}}",
            "4:19: roles.learner.replicas: each learner needs an actor, at most roles.actor.replicas, got 2 > 1",
        ),
        (
            "algorithm: {batch_size: 40}\nroles: {learner: {replicas: 3}, actor: {replicas: 3}}",
            "4:13: algorithm.batch_size: must be at least a segment for each learner, unroll_length x"
            " roles.learner.replicas = 20 x 3 = 60 rows, got 40",
        ),
        (
            "model: {core: gru, share: false}",
            "4:20: model.share: policy and value have one memory: must be auto or true with core gru, got false",
        ),
        (
            "model: {torso: my.nets:Own, layer_norm: true}",
            "4:29: model.layer_norm: is for torsos of ours, my.nets:Own makes its own layers; remove it",
        ),
        (
            "model: {torso: my.nets:Own, gains: {hidden: 1}}",
            "4:37: model.gains.hidden: is for torsos of ours, my.nets:Own makes its own layers; remove it",
        ),
        (
            "model: {gaussian: {log_std_min: 1}}",
            "4:9: model.gaussian.log_std_max: must be more than 2 above log_std_min, the last 1 before either is bent;"
            " got 2 - 1 = 1",
        ),
        (
            "model: {gaussian: {log_std_init: 1.5}}",
            "4:20: model.gaussian.log_std_init: must be from log_std_min + 1 to log_std_max - 1, -4 to 1, got 1.5",
        ),
        (
            "sync: true\nalgorithm: {batch_size: 320}\nmodel: {precision: bf16}",
            "6:9: model.precision: with sync everything is computed in fp32: must be auto or fp32, got bf16",
        ),
        ("code: {path: nowhere}", "4:8: code.path: no such folder: nowhere"),
        ("code: {path: spec.yaml}", "4:8: code.path: is a file; name its folder"),
        ('code: {path: "a\\0b"}', "4:8: code.path: no such folder: a\\x00b"),
        ("code: {requirements: r.txt}", "4:8: code.requirements: no such file: r.txt"),
        (
            "storage: {path: ~nobody-such/runs}",
            "4:11: storage.path: no home folder is known for '~nobody-such'; write the folder out",
        ),
        (
            "algorithm: {}\npolicies: {main: {}}",
            "4:1: algorithm: `policies` is given too; move it to policies.main.algorithm, or remove one of them",
        ),
        (
            "model: {width: 3}\npolicies: {main: {}}",
            "4:1: model: `policies` is given too; move it to policies.main.model, or remove one of them",
        ),
    ],
)
def test_what_cannot_work_together_is_refused_with_the_arithmetic(lint: Lint, lines: str, fault: str) -> None:
    assert lint(TOP + lines) == [f"spec.yaml:{fault}"]


@pytest.mark.parametrize(
    "lines",
    [
        "sync: true\nalgorithm: {batch_size: 1280}\nroles: {actor: {replicas: 4}}",
        "evaluation: {episodes: 7}",
        "evaluation: {episodes: 30}",
        "evaluation: {episodes: 24, envs: 7}",
        "evaluation: {episodes: 5, envs: 8}",
        "algorithm: {c_max: 1, rho_max: 1}",
        "algorithm: {name: appo, reuse: 2, buffer_batches: 5}",
        "algorithm: {optimizer: adamw, weight_decay: 0.01}",
        "algorithm: {max_lag_versions: 2}",
        "algorithm: {name: ppo, batch_size: 1024}",
        "roles: {actor: {replicas: 8, max_replicas: 8}}",
        "code: {path: .}",
        "policies: {main: {algorithm: {lr: 0.1}}}",
    ],
)
def test_what_works_together_is_accepted(lint: Lint, lines: str) -> None:
    assert lint(TOP + lines) == []


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("stop: {eval_return: 3}", "3:8: stop.eval_return"),
        ("evaluation: {video_every: 3}", "3:14: evaluation.video_every"),
    ],
)
def test_an_evaluation_return_and_recorded_episodes_need_an_evaluator(lint: Lint, section: str, value: str) -> None:
    text = f"run: a\nenv: {{id: b}}\n{section}\nroles: {{evaluator: {{replicas: 0}}}}"
    assert f"spec.yaml:{value}: needs an evaluator: set roles.evaluator.replicas to at least 1, got 0" in lint(text)


def test_likes_that_lead_nowhere_are_refused(lint: Lint) -> None:
    text = """\
policies:
  main: {like: man}
  far: {like: near}
  near: {like: far, model: {}}
  third: {like: near}
  self: {like: self}
"""
    assert lint(TOP + text) == [
        "spec.yaml:4:1: policies: not built yet; name one policy",
        "spec.yaml:5:10: policies.main.like: no policy `man`; there is main, far, near, third or self",
        "spec.yaml:6:9: policies.far.like: goes in a circle: far -> near -> far",
        "spec.yaml:7:10: policies.near.like: goes in a circle: near -> far -> near",
        "spec.yaml:7:21: policies.near.model: `like: far` brings one already; remove `like` or this",
        "spec.yaml:9:10: policies.self.like: goes in a circle: self -> self",
    ]


def test_a_misspelt_like_is_answered_with_the_closest_policy(lint: Lint) -> None:
    faults = lint(TOP + "policies: {main: {}, b: {like: mian}}")
    assert "spec.yaml:4:26: policies.b.like: no policy `mian`; did you mean `main`?" in faults


def test_a_rule_is_silent_while_a_value_it_rests_on_is_wrong_itself(lint: Lint) -> None:
    assert lint(TOP + "sync: true\nalgorithm: {batch_size: -1}\nroles: {actor: {replicas: x}}\nreplay: {}") == [
        "spec.yaml:5:13: algorithm.batch_size: must be at least 1, got -1",
        "spec.yaml:6:17: roles.actor.replicas: must be a whole number, got 'x'",
        "spec.yaml:7:1: replay: not used by impala; remove it",
    ]


def test_rules_of_impala_are_silent_while_the_algorithm_is_unknown(lint: Lint) -> None:
    assert [fault.split(": ")[1] for fault in lint(TOP + "algorithm: {name: foo, batch_size: 7}")] == ["algorithm.name"]


def test_code_is_looked_for_beside_the_first_file(lint: Lint, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "r.txt").write_text("")
    assert lint(TOP + "code: {path: mine, requirements: r.txt}") == []


def test_in_lock_step_an_environment_of_ones_own_may_have_several_seats(lint: Lint) -> None:
    text = "run: a\nenv: {{id: {}}}\nstop: {{agent_steps: 1000}}\nsync: true\nalgorithm: {{batch_size: {}}}"
    several = (
        "spec.yaml:5:13: algorithm.batch_size: with sync a batch is one segment of every seat of every environment: a"
        " multiple of actors x envs x unroll_length = 1 x 16 x 20 = 320 rows, got 500"
    )
    assert lint(text.format("json:Duel", 320)) == []
    assert lint(text.format("json:Duel", 640)) == []
    assert lint(text.format("json:Duel", 500)) == [several]
    assert "= 320 rows, got 640" in lint(text.format("json:Duel-v0", 640))[0], "Gymnasium's have one seat"
    nobody = "\nroles: {actor: {replicas: 0}}"
    assert "= 0 x 16 x 20 = 0 rows, got 320" in lint(text.format("json:Duel", 320) + nobody)[0]


@pytest.mark.parametrize(
    ("lines", "faults"),
    [
        (
            "algorithm: {name: dqn, batch_size: 1000}",
            ["4:24: algorithm.batch_size: must be a multiple of minibatch_size, got 1000 = 7 x 128 + 104; choose 896 or"
             " 1024"],
        ),
        (
            "algorithm: {name: td3, batch_size: 256}",
            ["4:24: algorithm.batch_size: must be a multiple of minibatch_size x policy_every, got 256 = 0 x 256 x 2 +"
             " 256; choose 512"],
        ),
        (
            "algorithm: {name: apex_dqn, minibatch_size: 1}\nroles: {learner: {replicas: 2}, actor: {replicas: 2}}",
            ["4:29: algorithm.minibatch_size: must be at least a row for each learner, got 1 < 2"],
        ),
        (
            "algorithm: {name: r2d2}\nmodel: {core: none}",
            ["5:9: model.core: r2d2 has a memory: must be lstm or gru, got none; apex_dqn is the same without one"],
        ),
        (
            "algorithm: {name: r2d2, burn_in: 50, sequence_length: 30, batch_size: 300, minibatch_size: 100}",
            [
                "4:25: algorithm.burn_in: must be a multiple of unroll_length, got 50 = 1 x 40 + 10; choose 40 or 80",
                "4:38: algorithm.sequence_length: must be a multiple of unroll_length, got 30 = 0 x 40 + 30; choose 40",
                "4:76: algorithm.minibatch_size: must be a multiple of sequence_length, got 100 = 3 x 30 + 10; choose"
                " 90 or 120",
            ],
        ),
        (
            "algorithm: {name: r2d2, unroll_length: 30}",
            [
                "4:1: algorithm.burn_in: must be a multiple of unroll_length, got 40 = 1 x 30 + 10; choose 30 or 60",
                "4:1: algorithm.sequence_length: must be a multiple of unroll_length, got 80 = 2 x 30 + 20; choose 60"
                " or 90",
            ],
        ),
        (
            "algorithm: {name: r2d2, minibatch_size: 80, batch_size: 240}\n"
            "roles: {learner: {replicas: 2}, actor: {replicas: 2}}",
            ["4:25: algorithm.minibatch_size: must be at least a sequence of 80 rows for each learner, got 80 < 160"],
        ),
        (
            "algorithm: {name: r2d2, burn_in: 0, sequence_length: 40, minibatch_size: 80, batch_size: 240}\n"
            "model: {core: gru}\nroles: {learner: {replicas: 2}, actor: {replicas: 2}}",
            [],
        ),
        (
            "sync: true\nalgorithm: {name: sac}\nmodel: {core: lstm, share: true, normalize: {returns: true},"
            " gaussian: {squash: false, std: free}}",
            [
                "4:1: sync: sac learns from what was drawn by chance, in no fixed order: must be false, got true",
                "6:9: model.core: sac has no memory: must be none, got lstm",
                "6:21: model.share: sac has no value beside its policy: must be auto, got true",
                "6:46: model.normalize.returns: sac does not normalise returns: must be auto or false, got true; see"
                " algorithm.reward_scale",
                "6:73: model.gaussian.squash: the policy of sac is a squashed Gaussian of the network: must be true,"
                " got false",
                "6:88: model.gaussian.std: the policy of sac is a squashed Gaussian of the network: must be 'network',"
                " got 'free'",
            ],
        ),
        (
            "algorithm: {name: dqn, lr_schedule: {agent_steps: 10, final: 2}}",
            ["4:55: algorithm.lr_schedule.final: must be at most 1, got 2"],
        ),
    ],
)  # fmt: skip
def test_what_an_algorithm_with_a_replay_cannot_do_is_said_at_once(lint: Lint, lines: str, faults: list[str]) -> None:
    assert sorted(lint(TOP + lines)) == sorted(f"spec.yaml:{fault}" for fault in faults)


def test_a_network_that_is_not_described_is_the_algorithms_own() -> None:
    for name, width, core in (("dqn", 128, "none"), ("r2d2", 128, "lstm"), ("sac", 256, "none")):
        model = Spec.model_validate({"run": "a", "env": {"id": "x"}, "algorithm": {"name": name}}).policy().model
        assert (model.hidden, model.activation, model.core) == ([width, width], "relu", core)
    text = {"algorithm": {"name": "sac"}, "model": {"hidden": [8], "gaussian": {"log_std_min": -9}}}
    model = Spec.model_validate({"run": "a", "env": {"id": "x"}, "policies": {"main": text}}).policy().model
    assert (model.hidden, model.activation) == ([8], "relu")
    assert (model.gaussian.log_std_min, model.gaussian.std, model.gaussian.squash) == (-9, "network", True)


def test_samples_per_insert_are_the_algorithms_unless_they_are_said() -> None:
    of_auto = (("dqn", False, 32), ("dqn", True, 8), ("apex_dqn", False, 32), ("sac", False, 256))
    for given, name, images, ratio in (
        *(("auto", *one) for one in of_auto), (3, "sac", False, 3), (None, "sac", False, 0),
    ):  # fmt: skip
        algorithm = (
            Spec.model_validate({"run": "a", "env": {"id": "x"}, "algorithm": {"name": name}}).policy().algorithm
        )
        assert isinstance(algorithm, Replayed)
        replay = ReplayBuffer.model_validate({"samples_per_insert": given})
        assert replay.ratio_of(algorithm, images=images) == ratio
