"""One line of a spec, and the one line that it earns."""

import pytest

from tests.spec.conftest import Lint

OURS = "impala, ppo, appo, dqn, apex_dqn, r2d2, sac, td3 or your own package.module:Class"
TOP = "run: a\nenv: {id: CartPole-v1}\nstop: {agent_steps: 1000}\n"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("x: 1", "4:1: x: unknown key; remove it"),
        ("sead: 1", "4:1: sead: unknown key; did you mean `seed`?"),
        ("algoritm: {}", "4:1: algoritm: unknown key; did you mean `algorithm`?"),
        (
            "algorithm: {name: 'mine:A', lr: 1e-3}",
            "4:29: algorithm.lr: unknown key for an algorithm of your own; what mine:A alone reads belongs below"
            " `params`",
        ),
        ("lr: 1", "4:1: lr: unknown key here; did you mean `algorithm.lr`?"),
        (
            "replicas: 1",
            "4:1: replicas: unknown key here; did you mean `roles.modelpool.replicas`, `roles.learner.replicas` or"
            " `roles.actor.replicas`?",
        ),
        ("roles: {actor: {env: 3}}", "4:17: roles.actor.env: unknown key; did you mean `envs`?"),
        ("roles: {actor: {envz: 3}}", "4:17: roles.actor.envz: unknown key; did you mean `envs`?"),
        (
            "checkpoint: {often: 3}",
            "4:14: checkpoint.often: unknown key; keys here are every, keep",
        ),
        ("algorithm: {impala: {lr: 1}}", "4:13: algorithm.impala: unknown key; remove it"),
        ("policies: {main: {algoritm: {}}}", "4:19: policies.main.algoritm: unknown key; did you mean `algorithm`?"),
        ("roles: {actor: {replicas: -1}}", "4:17: roles.actor.replicas: must be at least 0, got -1"),
        ("roles: {actor: {replicas: 1.5}}", "4:17: roles.actor.replicas: must be a whole number, got 1.5"),
        (
            "roles: {actor: {replicas: '4'}}",
            "4:17: roles.actor.replicas: must be a whole number, got the text '4'; write 4",
        ),
        (
            "roles: {actor: {replicas: 1_000}}",
            "4:17: roles.actor.replicas: must be a whole number, got the text '1_000'; write 1000",
        ),
        ("roles: {actor: {replicas: true}}", "4:17: roles.actor.replicas: must be a whole number, got true"),
        ("roles: {actor: {replicas: 200000}}", "4:17: roles.actor.replicas: must be at most 100000, got 200000"),
        (
            "roles: {actor: }",
            "4:9: roles.actor: must be a mapping (key: value), got nothing; give it keys or remove it",
        ),
        ("roles: [actor]", "4:1: roles: must be a mapping (key: value), got a list"),
        (
            "algorithm: {segment_steps: 5}",
            "4:13: algorithm.segment_steps: unknown key; since release 0.2 it is `unroll_length`",
        ),
        ("algorithm: {discount: 0.9}", "4:13: algorithm.discount: unknown key; since release 0.2 it is `gamma`"),
        (
            "algorithm: {lr_decay_rows: 9}",
            "4:13: algorithm.lr_decay_rows: unknown key; since release 0.2 it is"
            " `lr_schedule: {kind: linear, agent_steps: ...}`",
        ),
        ("algorithm: {learning_rate: 0.1}", "4:13: algorithm.learning_rate: unknown key; here it is `lr`"),
        ("learning_rate: 0.1", "4:1: learning_rate: unknown key; here it is `algorithm.lr`"),
        ("num_envs: 8", "4:1: num_envs: unknown key; here it is `roles.actor.envs`"),
        ("roles: {actor: {num_envs: 8}}", "4:17: roles.actor.num_envs: unknown key; here it is `envs`"),
        (
            "algorithm: {clip_range: 0.2}",
            "4:13: algorithm.clip_range: unknown key; it belongs to ppo or appo, where it is `clip`, and impala clips"
            " by rho_max, c_max and pg_rho_max",
        ),
        ("algorithm: {epochs: 3}", "4:13: algorithm.epochs: unknown key; it belongs to ppo"),
        ("algorithm: {name: ppo, clip_range: 0.2}", "4:24: algorithm.clip_range: unknown key; here it is `clip`"),
        ("algorithm: {name: ppo, n_epochs: 4}", "4:24: algorithm.n_epochs: unknown key; here it is `epochs`"),
        (
            "algorithm: {name: ppo, num_minibatches: 4}",
            "4:24: algorithm.num_minibatches: unknown key; here it is `minibatch_size: batch_size / num_minibatches`",
        ),
        (
            "algorithm: {name: ppo, rho_bar: 1}",
            "4:24: algorithm.rho_bar: unknown key; it belongs to impala or appo, where it is `rho_max`",
        ),
        (
            "algorithm: {name: ppo, max_lag_versions: 3}",
            "4:24: algorithm.max_lag_versions: must be 0, got 3",
        ),
        ("algorithm: {reuse: 2}", "4:13: algorithm.reuse: unknown key; it belongs to appo"),
        (
            "algorithm: {name: appo, target_network_update_freq: 4}",
            "4:25: algorithm.target_network_update_freq: unknown key; here it is `target_every_updates`",
        ),
        (
            "algorithm: {betas: [0.9, 0.99]}",
            "4:13: algorithm.betas: unknown key; here it is `adam_beta1`",
        ),
        *(
            (f"algorithm: {{name: {name}, {key}: 1}}", f"4:{21 + len(name)}: algorithm.{key}: unknown key; {words}")
            for name, key, words in (
                ("sac", "ent_coef", "here it is `temperature`"),
                ("sac", "alpha", "here it is `temperature`"),
                ("dqn", "train_batch_size", "here it is `minibatch_size`"),
                ("ppo", "train_batch_size", "here it is `batch_size`"),
                ("dqn", "exploration_fraction", "here it is `epsilon_steps: exploration_fraction x stop.agent_steps`"),
                ("apex_dqn", "exploration_fraction", "it belongs to dqn, where it is `epsilon_steps`"),
                (
                    "td3",
                    "train_freq",
                    "here it is `replay.samples_per_insert: minibatch_size x gradient_steps / train_freq`",
                ),
                (
                    "dqn",
                    "target_update_interval",
                    "here it is `target_every_updates`, in versions, each of batch_size / minibatch_size optimizer"
                    " steps",
                ),
                (
                    "sac",
                    "target_network_frequency",
                    "it belongs to appo, dqn, apex_dqn or r2d2, where it is `target_every_updates`, and sac moves its"
                    " target networks by tau after each optimizer step",
                ),
                (
                    "td3",
                    "target_network_frequency",
                    "it belongs to appo, dqn, apex_dqn or r2d2, where it is `target_every_updates`, and td3 moves its"
                    " target networks by tau each policy_every optimizer steps",
                ),
                ("ppo", "anneal_lr", "here it is `lr_schedule: {kind: linear, agent_steps: ...}`"),
                (
                    "ppo",
                    "kl_coeff",
                    "no algorithm has a penalty on KL; `target_kl` of ppo and appo ends the steps of a batch",
                ),
                ("ppo", "policy_kwargs", "here it is `model`"),
                ("ppo", "device", "here it is `roles.learner.gpu`"),
            )
        ),
        ("ent_coef: 0.1\nalgorithm: {name: sac}", "4:1: ent_coef: unknown key; here it is `algorithm.temperature`"),
        ("max_steps: 9", "4:1: max_steps: unknown key; here it is `stop.agent_steps`"),
        ("algorithm: {gamma: 1.01}", "4:13: algorithm.gamma: must be at most 1, got 1.01"),
        ("algorithm: {lr: 0}", "4:13: algorithm.lr: must be more than 0, got 0"),
        ("algorithm: {rmsprop_decay: 1}", "4:13: algorithm.rmsprop_decay: must be less than 1, got 1"),
        ("algorithm: {lr: '1e-4'}", "4:13: algorithm.lr: must be a number, got the text '1e-4'; write 1e-4"),
        ("algorithm: {lr: fast}", "4:13: algorithm.lr: must be a number, got 'fast'"),
        ("algorithm: {lr: [1]}", "4:13: algorithm.lr: must be a number, got a list"),
        (
            "algorithm: {optimizer: adamm}",
            "4:13: algorithm.optimizer: must be rmsprop, adam or adamw, got 'adamm'; did you mean `adam`?",
        ),
        (
            "algorithm: {name: imapla}",
            f"4:13: algorithm.name: must be {OURS}, got 'imapla'; did you mean `impala`?",
        ),
        *(
            (
                f"algorithm: {{name: {name}}}",
                f"4:13: algorithm.name: must be {OURS}, got '{name}'; {hint}",
            )
            for name, hint in (
                ("PPO", "did you mean `ppo`?"),
                ("trpo", "use ppo, which is of that kind"),
                ("apexdqn", "did you mean `apex_dqn`?"),
                ("rainbow", "use apex_dqn, which is of that kind"),
                ("c51", "use dqn, which is of that kind"),
                ("ddpg", "use td3, which is of that kind"),
                ("redq", "use sac, which is of that kind"),
                ("drqn", "use r2d2, which is of that kind"),
                ("a2c", "use impala, which is of that kind"),
            )
        ),
        (
            "algorithm: {name: trpo, its_own_key: 3}",  # of a name that nothing is known of no more is said
            f"4:13: algorithm.name: must be {OURS}, got 'trpo'; use ppo, which is of that kind",
        ),
        (
            "policies: {main: {algorithm: {name: trpo}}}",
            f"4:31: policies.main.algorithm.name: must be {OURS}, got 'trpo'; use ppo, which is of that kind",
        ),
        ("leage: {}", "4:1: leage: unknown key; remove it"),
        ("colocate: learner", "4:1: colocate: unknown key; remove it"),
        (
            "roles: {replya: {}}",
            "4:9: roles.replya: unknown key; did you mean `replay`?",
        ),
        (
            "algorithm: {name: a:b:c}",
            f"4:13: algorithm.name: must be {OURS}, got 'a:b:c'",
        ),
        (
            "algorithm: {name: [1]}",
            f"4:13: algorithm.name: must be {OURS}, got a list",
        ),
        (
            "algorithm: {name: }",
            f"4:13: algorithm.name: must be {OURS}, got nothing",
        ),
        ("algorithm: {name: json:loads, params: 3}", "4:31: algorithm.params: must be a mapping (key: value), got 3"),
        (
            "algorithm: impala",
            "4:1: algorithm: must be a mapping (key: value), got 'impala'; write it, as in `algorithm: {name: impala}`",
        ),
        ("sync: yes", "4:1: sync: must be true or false, got 'yes'; write true"),
        ("sync: Off", "4:1: sync: must be true or false, got 'Off'; write false"),
        (
            "algorithm: {name: json:loads, params: {deep: {flag: No}}}",
            "4:47: algorithm.params.deep.flag: No is text here, not a boolean; write false, or the text in quotes:"
            " 'No'",
        ),
        ("sync: 1", "4:1: sync: must be true or false, got 1"),
        ("storage: {path: 5}", "4:11: storage.path: must be text, got 5; put it in quotes: '5'"),
        ("storage: {path: 0012}", "4:11: storage.path: must be text, got 0012; put it in quotes: '0012'"),
        ("storage: {path: ''}", "4:11: storage.path: must not be empty"),
        ("code: {path: []}", "4:8: code.path: must be text, got a list"),
        (
            "model: {normalize: {observations: maybe}}",
            "4:21: model.normalize.observations: must be auto, true or false, got 'maybe'",
        ),
        ("model: {share: yes}", "4:9: model.share: must be auto, true or false, got 'yes'"),
        ("model: {core: rnn}", "4:9: model.core: must be none, lstm or gru, got 'rnn'"),
        ("model: {gaussian: {std: learned}}", "4:20: model.gaussian.std: must be free or network, got 'learned'"),
        ("model: {gains: {policy: 0}}", "4:17: model.gains.policy: must be more than 0, got 0"),
        (
            "algorithm: {entropy_coef: atuo}",
            "4:13: algorithm.entropy_coef: must be auto or a number, got 'atuo'; did you mean `auto`?",
        ),
        ("algorithm: {entropy_coef: -1}", "4:13: algorithm.entropy_coef: must be auto or at least 0, got -1"),
        ("model: {hidden: 64}", "4:9: model.hidden: must be a list, as in [1, 2], got 64"),
        ("model: {hidden: [64, x]}", "4:22: model.hidden.1: must be a whole number, got 'x'"),
        (
            "model: {torso: nature}",
            "4:9: model.torso: must be auto, mlp, small_cnn, nature_cnn, impala_cnn or package.module:Class, got"
            " 'nature'; did you mean `nature_cnn`?",
        ),
        (
            "model: {torso: 5}",
            "4:9: model.torso: must be auto, mlp, small_cnn, nature_cnn, impala_cnn or package.module:Class, got 5",
        ),
        ("roles: {learner: {cpu: 2GHz}}", "4:19: roles.learner.cpu: must be cores, as in 2, 0.5 or 500m, got '2GHz'"),
        ("roles: {learner: {cpu: 0}}", "4:19: roles.learner.cpu: must be between 1m and 1024 cores, got 0"),
        (
            "roles: {learner: {memory: 2}}",
            "4:19: roles.learner.memory: must be memory with its unit, as in 512Mi or 2Gi, got 2",
        ),
        (
            "checkpoint: {every: 5 min}",
            "4:14: checkpoint.every: must be a duration, as in 30s, 5m or 1h30m, got '5 min'",
        ),
        (
            "checkpoint: {every: 0}",
            "4:14: checkpoint.every: must be longer than zero and shorter than 300 years, got 0",
        ),
        ("policies: {}", "4:1: policies: must have at least one entry"),
        (
            "policies: {Main: {}}",
            "4:12: policies.Main: the name must be at most 20 of a-z, 0-9 and -, with no - at the ends, got 'Main'",
        ),
        (
            "policies: {main: {algorithm: {lr: -1}}}",
            "4:31: policies.main.algorithm.lr: must be more than 0, got -1",
        ),
        ("league: {freeze: {win_rate: high}}", "4:19: league.freeze.win_rate: must be a number, got 'high'"),
        ("pbt: {mutate: {lr: [0.8, x]}}", "4:26: pbt.mutate.lr.1: must be a number, got 'x'"),
        ('target: "\\e[31mred"', "4:1: target: must be local or kubernetes, got '\\x1b[31mred'"),
        ("env: {id: A}", "4:1: env: given twice, in line 2 and in line 4; keep one"),
        (
            "images: {core: python}",
            "4:10: images.core: must be an image by tag (name:1.0) or by digest (name@sha256:<64 hex digits>, as"
            " `rlctl image push` prints it), got 'python'",
        ),
        (
            "kubernetes: {proxy: {image: 'oauth2-proxy:7'}}",
            "4:22: kubernetes.proxy.image: must be an image by digest (name@sha256:<64 hex digits>), got"
            " 'oauth2-proxy:7'",
        ),
        ("images: {cor: x}", "4:10: images.cor: unknown key; did you mean `core`?"),
        (
            "storage: {claim: My_Claim}",
            "4:11: storage.claim: must be the name of an object of the cluster: at most 253 of a-z, 0-9, - and ., got"
            " 'My_Claim'",
        ),
        (
            "storage: {class: 5}",
            "4:11: storage.class: must be text, got 5; put it in quotes: '5'",
        ),
        ("storage: {class_: a}", "4:11: storage.class_: unknown key; did you mean `class`?"),
        ("storage: {size: 5}", "4:11: storage.size: must be memory with its unit, as in 512Mi or 2Gi, got 5"),
        (
            "kubernetes: {source_ranges: [10.0.0.1/8]}",
            "4:30: kubernetes.source_ranges.0: '10.0.0.1/8' has bits beyond its prefix; write 10.0.0.0/8 or"
            " 10.0.0.1/32",
        ),
        (
            "kubernetes: {source_ranges: [example.com]}",
            "4:30: kubernetes.source_ranges.0: must be a range of addresses, as in 203.0.113.0/24, got 'example.com'",
        ),
        ("kubernetes: {proxy: {args: [x]}}", "4:14: kubernetes.proxy.image: is missing"),
        (
            "kubernetes: {queue: 'a b'}",
            "4:14: kubernetes.queue: must be the name of a queue: at most 63 of a-z, 0-9, - and ., got 'a b'",
        ),
    ],
)
def test_a_wrong_line_earns_one_problem_with_place_value_and_remedy(lint: Lint, line: str, fault: str) -> None:
    assert [problem for problem in lint(TOP + line) if "not built yet; remove it" not in problem] == [
        f"spec.yaml:{fault}"
    ]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (
            "seed: 1",
            ["1:1: env: is missing, as in `env: {id: CartPole-v1}`", "1:1: run: is missing, as in `run: my-run`"],
        ),
        ("run: a\nenv:\n  preset: none", ["2:1: env.id: is missing, as in `id: CartPole-v1`"]),
        ("run: a\nenv: {id: ''}", ["2:7: env.id: must not be empty"]),
        (
            "run: a\nenv: {id: CartPole-v1}\nstop: {rows: 5, steps: 6}",
            [
                "3:8: stop.rows: unknown key; since release 0.2 it is `agent_steps`",
                "3:17: stop.steps: unknown key; here it is `agent_steps`",
            ],
        ),
        (
            "run: a\nenv: CartPole-v1",
            ["2:1: env: must be a mapping (key: value), got 'CartPole-v1'; write it, as in `env: {id: CartPole-v1}`"],
        ),
        (
            "run: My Run\nenv: {id: a}",
            ["1:1: run: must be at most 40 of a-z, 0-9 and -, with no - at the ends, got 'My Run'"],
        ),
        ("run: 2026\nenv: {id: a}", ["1:1: run: must be text, got 2026; put it in quotes: '2026'"]),
    ],
)
def test_what_must_be_there_is_asked_for_with_an_example(lint: Lint, text: str, faults: list[str]) -> None:
    assert lint(text) == [f"spec.yaml:{fault}" for fault in faults]


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("league: {}", "4:1: league: not built yet; remove it"),
        ("pbt: {}", "4:1: pbt: not built yet; remove it"),
        ("inference: {mode: central}", "4:13: inference.mode: not built yet ('central'); remove it"),
        ("inference: {colocate: learner}", "4:13: inference.colocate: not built yet ('learner'); remove it"),
        ("inference: {max_wait_ms: 7}", "4:13: inference.max_wait_ms: not built yet (7.0); remove it"),
        ("inference: {max_batch: 7}", "4:13: inference.max_batch: not built yet (7); remove it"),
        ("env: {splits: 2}", "2:7: env.splits: not built yet (2); remove it"),
        ("policies: {main: {}, other: {}}", "4:1: policies: not built yet; name one policy"),
        ("policies: {other: {}}", "4:1: policies: not built yet; call the policy main"),
        ("policies: {main: {population: 4}}", "4:19: policies.main.population: not built yet (4); remove it"),
        ("roles: {inference: {}}", "4:9: roles.inference: not built yet; remove it"),
    ],
)
def test_what_a_later_release_brings_is_refused_today(lint: Lint, lines: str, fault: str) -> None:
    text = TOP + lines
    if lines.startswith("env:"):
        text = f"run: a\n{lines[:-1]}, id: CartPole-v1}}\nstop: {{agent_steps: 1000}}\n"
    assert lint(text) == [f"spec.yaml:{fault}"]


@pytest.mark.parametrize("env", ["gfootball/11_vs_11_stochastic", "openspiel/connect_four"])
def test_environment_families_of_a_later_release_are_refused_today(lint: Lint, env: str) -> None:
    assert lint(TOP.replace("CartPole-v1", env)) == [
        f"spec.yaml:2:7: env.id: not built yet ('{env}'); use a Gymnasium id or your own"
    ]


def test_what_is_built_and_the_defaults_of_what_is_not_are_accepted(lint: Lint) -> None:
    text = """\
target: local
policies: {main: {population: 1, algorithm: {name: impala}}}
inference: {mode: local, colocate: none, max_wait_ms: 5}
kubernetes: {expose: clusterip, gang: none}
roles:
  learner: {replicas: 1, gpu: 1, on_push: checkpoint-restart}
  actor: {max_replicas: 8, on_push: rolling}
  modelpool: {replicas: 64}
  evaluator: {replicas: 2}
"""
    assert lint(TOP + text) == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (
            "wrappers: [ClipAction, NormalizeReward]",
            "4:26: env.wrappers.1: NormalizeReward: its moments would stay in each process and in no checkpoint; use"
            " model.normalize",
        ),
        (
            "wrappers: [{name: ClipActions}]",
            "4:14: env.wrappers.0: Gymnasium has no wrapper ClipActions; did you mean `ClipAction`?",
        ),
        (
            "wrappers: [{kwargs: {}}]",
            "4:14: env.wrappers.0: must be the name of a wrapper, or {name: ..., kwargs: {...}}, got a mapping",
        ),
        ("wrappers: [3]", "4:14: env.wrappers.0: must be the name of a wrapper, or {name: ..., kwargs: {...}}, got 3"),
        (
            "wrappers: [gymnasium.wrappers:FrameStackObservation]",
            "4:14: env.wrappers.0: gymnasium.wrappers:FrameStackObservation: each frame would travel as often as it is"
            " shown; use env.frame_stack",
        ),
        (
            "wrappers: [{name: ClipAction, kwargs: 3}]",
            "4:14: env.wrappers.0: kwargs must be a mapping (key: value), got 3",
        ),
        ("resize: [84]", "4:3: env.resize: must be rows and columns, as in [84, 84], got a list"),
        ("frame_skip: 4", "4:3: env.frame_skip: unknown key; here it is `action_repeat`"),
    ],
)
def test_what_is_put_around_an_environment(line: str, fault: str, lint: Lint) -> None:
    assert lint(f"run: a\nenv:\n  id: CartPole-v1\n  {line}\nstop: {{agent_steps: 1000}}\n") == [f"spec.yaml:{fault}"]


def test_wrappers_are_written_short_or_whole_and_the_preset_takes_none(lint: Lint) -> None:
    wrappers = "[ClipAction, {name: 'json:loads', kwargs: {a: 1}}]"
    text = f"run: a\nenv:\n  id: ALE/Pong-v5\n  wrappers: {wrappers}\nstop: {{agent_steps: 1}}\n"
    assert lint(text) == []
    assert lint(text.replace("  wrappers", "  preset: atari\n  wrappers")) == [
        "spec.yaml:5:3: env.wrappers: the preset atari steps its games together and takes none; remove them, or write"
        " out what it would do"
    ]


@pytest.mark.parametrize("key", ["time_limit", "max_steps"])
def test_the_limit_of_an_episode_is_that_of_the_environment(lint: Lint, key: str) -> None:
    text = f"run: a\nenv: {{id: CartPole-v1, {key}: 9}}\nstop: {{agent_steps: 1000}}\n"
    assert lint(text) == [f"spec.yaml:2:24: env.{key}: unknown key; here it is `max_episode_steps`"]
