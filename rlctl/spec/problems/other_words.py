"""Keys of release 0.1 and of other frameworks -> ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rlctl.spec import fields
from rlctl.spec.algorithms import KINDS, NEED_REPLAY
from rlctl.spec.words import Path, closest, either

RENAMED: Final[Mapping[Path, str]] = {
    ("algorithm", "segment_steps"): "unroll_length",
    ("algorithm", "batch_rows"): "batch_size",
    ("algorithm", "discount"): "gamma",
    ("algorithm", "lam"): "lambda",
    ("algorithm", "epsilon"): "optimizer_eps",
    ("algorithm", "lr_decay_rows"): "lr_schedule: {kind: linear, agent_steps: ...}",
    ("stop", "rows"): "agent_steps",
    ("replay", "capacity_rows"): "capacity",
    ("replay", "min_rows"): "learning_starts",
    ("pbt", "every_rows"): "every_agent_steps",
}
"""Section and key of release 0.1 -> the key in the same section today."""

_FOREIGN: Final[Mapping[str, tuple[str, ...]]] = {
    "env.id": ("env_id", "env_name", "environment", "game", "task"),
    "env.kwargs": ("env_config", "env_kwargs", "make_kwargs"),
    "env.action_repeat": ("frame_skip", "frameskip", "env_frameskip", "frame_repeat", "repeat_action"),
    "env.frame_stack": (
        "stack", "num_stack", "framestack", "num_framestacks", "env_framestack", "n_stack", "frame_stacks",
        "num_frames_stacked",
    ),
    "env.grayscale": ("grey", "gray", "grayscale_obs", "gray_scale", "greyscale"),
    "env.resize": ("screen_size", "dim", "image_size", "res", "resolution"),
    "env.episodic_life": ("terminal_on_life_loss", "life_loss"),
    "roles.actor.envs": (
        "num_envs", "n_envs", "num_envs_per_worker", "num_envs_per_env_runner", "num_envs_per_actor", "envs_per_worker",
    ),
    "roles.actor.replicas": ("num_workers", "n_workers", "num_env_runners", "num_rollout_workers", "num_actors"),
    "roles.learner.replicas": ("num_learners", "num_gpu_learners"),
    "roles.learner.gpu": ("num_gpus", "num_gpus_per_learner", "gpus", "device", "cuda", "use_gpu"),
    "algorithm.batch_size": ("train_batch_size", "frames_per_batch", "batch_timesteps"),
    "algorithm.batch_size: train_batch_size_per_learner x num_learners": ("train_batch_size_per_learner",),
    "algorithm.unroll_length": (
        "rollout_fragment_length", "n_steps", "num_steps", "rollout", "rollout_length", "unroll_steps", "horizon",
        "max_seq_len",
    ),
    "algorithm.lr": ("learning_rate", "lr_rate", "step_size", "policy_lr", "actor_lr"),
    "algorithm.gamma": ("discount", "discounting", "discount_factor", "discount_rate"),
    "algorithm.lambda": ("lam", "lambda_", "gae_lambda", "lmbda", "td_lambda"),
    "algorithm.entropy_coef": ("ent_coef", "entropy_coeff", "entropy_cost", "entropy_beta", "exploration_loss_coeff"),
    "algorithm.value_coef": ("vf_coef", "vf_loss_coeff", "value_loss_coef", "value_loss_coeff", "baseline_cost",
                             "critic_coef"),
    "algorithm.max_grad_norm": ("grad_clip", "grad_norm_clipping", "clip_grad_norm", "max_gradient_norm"),
    "algorithm.reward_clip": ("clip_rewards", "clip_reward", "reward_clipping"),
    "algorithm.optimizer_eps": ("eps", "adam_eps", "adam_epsilon", "rms_prop_eps", "rmsprop_eps", "rms_prop_epsilon"),
    "algorithm.rho_max": ("vtrace_rho", "rho_bar", "vtrace_clip_rho_threshold"),
    "algorithm.c_max": ("vtrace_c",),
    "algorithm.pg_rho_max": ("vtrace_clip_pg_rho_threshold",),
    "algorithm.clip": (
        "clip_range", "clip_param", "clip_coef", "clip_ratio", "clip_epsilon", "eps_clip", "ppo_clip_ratio",
    ),
    "algorithm.value_clip": ("clip_range_vf", "ppo_clip_value"),
    "algorithm.epochs": ("n_epochs", "num_epochs", "num_sgd_iter", "update_epochs", "ppo_epochs"),
    "algorithm.minibatch_size": ("sgd_minibatch_size", "mini_batch_size"),
    "algorithm.minibatch_size: batch_size / num_minibatches": ("num_minibatches", "n_minibatches"),
    "algorithm.reuse": ("circular_buffer_iterations_per_batch",),
    "algorithm.buffer_batches": ("circular_buffer_num_batches",),
    "algorithm.lr_schedule: {kind: linear, agent_steps: ...}": ("anneal_lr",),
    "algorithm.target_every_updates": (
        "target_network_update_freq", "target_update_frequency", "target_network_frequency", "target_update_interval",
    ),
    "algorithm.target_rho_max": ("target_worker_clipping",),
    "algorithm.entropy_schedule": ("entropy_coeff_schedule",),
    "algorithm.n_step": ("nstep", "n_steps_return", "multi_step", "n_step_returns"),
    "algorithm.prioritized": ("prioritized_replay", "per", "use_per"),
    "algorithm.priority_alpha": ("prioritized_replay_alpha", "per_alpha"),
    "algorithm.priority_beta": ("prioritized_replay_beta", "per_beta", "importance_sampling_exponent"),
    "algorithm.priority_epsilon": ("prioritized_replay_eps", "per_eps"),
    "algorithm.double": ("double_q", "double_dqn"),
    "algorithm.epsilon_initial": ("exploration_initial_eps", "initial_epsilon", "start_e", "eps_start"),
    "algorithm.epsilon_final": ("exploration_final_eps", "final_epsilon", "end_e", "eps_end"),
    "algorithm.epsilon_steps: exploration_fraction x stop.agent_steps": ("exploration_fraction",),
    "algorithm.epsilon_steps": ("epsilon_timesteps", "eps_decay", "epsilon_decay"),
    "algorithm.critic_lr": ("q_lr", "qf_lr", "critic_learning_rate", "lr_critic"),
    "algorithm.temperature_lr": ("alpha_lr", "temperature_learning_rate"),
    "algorithm.temperature: auto": ("autotune",),
    "algorithm.policy_every": ("policy_delay", "policy_frequency", "actor_update_freq"),
    "algorithm.exploration_noise": ("action_noise", "explore_noise", "expl_noise"),
    "algorithm.target_noise": ("target_policy_noise", "policy_noise"),
    "algorithm.target_noise_clip": ("noise_clip",),
    "algorithm.adam_beta1": ("beta1", "betas", "adam_betas"),
    "algorithm.adam_beta2": ("beta2",),
    "algorithm.advantage_norm": ("normalize_advantage", "norm_adv", "standardize_advantages"),
    "sync": ("torch_deterministic", "deterministic"),
    "model": ("policy_kwargs",),
    "model.hidden": ("hidden_sizes", "fcnet_hiddens", "net_arch", "hidden_dims", "num_cells", "hiddens"),
    "model.activation": ("fcnet_activation", "activation_fn", "nonlinearity"),
    "model.core: lstm": ("use_lstm", "recurrent", "lstm"),
    "model.core: gru": ("use_rnn", "use_gru", "gru"),
    "model.width": ("lstm_cell_size", "lstm_hidden_size", "rnn_size", "rnn_hidden_size", "gru_hidden_size"),
    "model.normalize.observations": (
        "normalize_input", "observation_filter", "norm_obs", "normalize_observations", "normalize_obs",
    ),
    "model.normalize.returns": ("norm_reward", "normalize_returns", "normalize_reward", "normalize_rewards"),
    "model.share": ("vf_share_layers", "share_features_extractor", "actor_critic_share_weights", "shared_network"),
    "model.layer_norm": ("layernorm", "use_layer_norm", "normalize_layers"),
    "model.gains": ("ortho_init", "init_gain", "policy_initialization"),
    "model.gaussian.log_std_init": ("log_std_init",),
    "model.gaussian.log_std_init: log(initial_stddev)": ("initial_stddev", "init_std"),
    "model.gaussian.squash": ("squash_output", "squash", "tanh_squash"),
    "model.gaussian.std: network": ("adaptive_stddev", "state_dependent_std"),
    "model.gaussian.std: free": ("free_log_std",),
    "stop.agent_steps": (
        "total_timesteps", "total_steps", "total_frames", "num_frames", "num_env_steps", "train_for_env_steps",
        "timesteps_total", "num_env_steps_sampled_lifetime", "max_timesteps", "steps", "timesteps", "max_steps",
    ),
    "stop.eval_return": ("episode_reward_mean", "reward_threshold", "target_return", "target_reward"),
    "stop.wall_time": ("time_total_s", "train_for_seconds", "max_time_s", "time_limit"),
    "evaluation.every": ("eval_freq", "eval_interval", "evaluation_interval", "eval_every"),
    "evaluation.video_every": ("capture_video", "record_video", "save_video"),
    "evaluation.episodes": ("n_eval_episodes", "eval_episodes", "evaluation_duration", "num_eval_episodes"),
    "checkpoint.every": (
        "checkpoint_freq", "checkpoint_frequency", "save_freq", "checkpoint_interval", "save_every", "save_every_sec",
    ),
    "checkpoint.keep": ("num_to_keep", "keep_checkpoints", "keep_checkpoints_num"),
    "replay.capacity": ("buffer_size", "replay_buffer_size", "buffer_capacity", "memory_size"),
    "replay.learning_starts": ("num_steps_sampled_before_learning_starts", "warmup_steps", "min_replay_size"),
    "replay.samples_per_insert": ("training_intensity", "replay_ratio"),
    "replay.samples_per_insert: minibatch_size x gradient_steps / train_freq": (
        "train_freq", "train_frequency", "gradient_steps",
    ),
    "trackers": ("logger", "loggers", "log_to"),
    "trackers.wandb": ("wandb", "track", "use_wandb", "with_wandb"),
    "trackers.wandb.project": ("wandb_project", "wandb_project_name"),
    "trackers.wandb.entity": ("wandb_entity", "wandb_user"),
    "trackers.wandb.group": ("wandb_group",),
    "trackers.wandb.tags": ("wandb_tags",),
    "trackers.mlflow": ("mlflow",),
    "trackers.mlflow.uri": ("tracking_uri", "mlflow_tracking_uri", "mlflow_uri"),
    "trackers.mlflow.experiment": ("mlflow_experiment", "mlflow_experiment_name"),
    "run": ("experiment", "exp_name", "run_name", "experiment_name"),
}  # fmt: skip
FOREIGN: Final[Mapping[str, str]] = {key: ours for ours, keys in _FOREIGN.items() for key in keys}
"""Key of RLlib, Stable-Baselines3, CleanRL, Sample Factory, torchrl or another IMPALA -> our path."""
_ELSEWHERE: Final[Mapping[tuple[str, str], str]] = {
    ("env", "time_limit"): "env.max_episode_steps",
    ("env", "max_steps"): "env.max_episode_steps",
    ("env", "horizon"): "env.max_episode_steps",
    ("sac", "alpha"): "algorithm.temperature",
    ("sac", "entropy_coef"): "algorithm.temperature",
    **{(name, "train_batch_size"): "algorithm.minibatch_size" for name in NEED_REPLAY},
    **{
        (name, "train_batch_size_per_learner"): "algorithm.minibatch_size: train_batch_size_per_learner x num_learners"
        for name in NEED_REPLAY
    },
}
"""Section or algorithm, and a key of other frameworks or of ours -> our path, where it is not that of FOREIGN."""
_INSTEAD: Final = {
    ("impala", "clip"): ", and impala clips by rho_max, c_max and pg_rho_max",
    ("sac", "target_every_updates"): ", and sac moves its target networks by tau after each optimizer step",
    ("td3", "target_every_updates"): ", and td3 moves its target networks by tau each policy_every optimizer steps",
}
"""Algorithm and key of another one -> what serves the purpose."""
_NOT_OFFERED: Final = {
    **dict.fromkeys(
        ("kl_coeff", "kl_coef", "kl_target"),
        "no algorithm has a penalty on KL; `target_kl` of ppo and appo ends the steps of a batch",
    ),
    **dict.fromkeys(
        ("initial_alpha", "init_temperature"),
        "the temperature that sac learns begins at 1; a number for `temperature` stays as it is",
    ),
    "vf_clip_param": "no algorithm bounds the squared error; `value_clip` of ppo and appo bounds how far a value moves",
}
"""Key of another framework without an equivalent -> what there is instead."""
_VERSIONS: Final = ", in versions, each of batch_size / minibatch_size optimizer steps"


def ours(path: Path, algorithm: str) -> str:
    """Our key for an unknown one, as the remainder of a message; empty when nothing is known of it.

    Args:
        algorithm: name of the algorithm that the key is for; "": not known.
    """
    key = str(path[-1])
    section = next((str(part) for part in reversed(path[:-1]) if part in ("algorithm", "stop", "replay", "pbt")), "")
    if renamed := RENAMED.get((section, key)):
        return f"unknown key; since release 0.2 it is `{renamed}`"
    model = KINDS.get(algorithm) if section == "algorithm" else None
    if model is not None and (near := closest(key, fields.keys(model), 0.9)):  # n_steps, of what has n_step
        return f"unknown key; did you mean `{near}`?"
    found = FOREIGN.get(key, f"algorithm.{key}" if section == "algorithm" else "")
    name = found.split(":")[0].removeprefix("algorithm.")
    if other := next(filter(None, map(_ELSEWHERE.get, ((str(path[0]), key), (algorithm, key), (algorithm, name)))), ""):
        found, name = other, other.removeprefix("algorithm.")
    of = [] if name == found else [kind for kind, model in KINDS.items() if name in fields.keys(model)]
    if of and algorithm in KINDS and algorithm not in of:
        there = f", where it is `{name}`" if name != key else ""
        return f"unknown key; it belongs to {either(of)}{there}{_INSTEAD.get((algorithm, name), '')}"
    if other or key in FOREIGN:
        here = ".".join(map(str, path[:-1]))
        unit = _VERSIONS if name == "target_every_updates" and algorithm in NEED_REPLAY else ""
        return f"unknown key; here it is `{found.removeprefix(f'{here}.') if here else found}`{unit}"
    return f"unknown key; {_NOT_OFFERED[key]}" if key in _NOT_OFFERED else ""
