"""Status of a run: shown by `rlctl status`, and stored."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from rlctl.spec.layout import API_VERSION
from rlctl.spec.machine import Machine
from rlctl_agents.manager.accounting.ledger import Rows
from rlctl_agents.manager.evaluation.evaluations import every_s
from rlctl_agents.manager.evaluation.selection import NAMES, Name
from rlctl_agents.manager.membership.leases import Holder
from rlctl_agents.manager.status.bottleneck import Waits, judge
from rlctl_agents.manager.status.problems import SILENT_S, Facts, find
from rlctl_agents.manager.status.replay import busy, figures, wanted_ratio
from rlctl_agents.manager.status.view import RunView
from rlctl_agents.manager.timing import report_every_s
from rlctl_agents.runtime.gauges import ENDLESS, MEMORY, RANK, RESUMING, STARVED, UNREADABLE, WORLD
from rlctl_agents.runtime.metrics import INFO
from rlctl_agents.types.control import Report, to_plain
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.types.figures import MAX_INFO, info_numbers

ACTING = ("env_steps", "frames", "agent_steps", "episodes")
LEARNING = ("consumed_steps", "learned_steps", "updates")
"""Totals that actors, and learners, count."""
SETTLED_S = 5.0
"""Seconds after a learner's first update from which its shares of waiting are meaningful."""
RECENT_EPISODES = 100
"""Episodes of which an actor's training return is the mean, at most."""
REFUSED_S = 30.0
"""Seconds for which a refusal of a process that asked to join stays a problem."""
LISTED = 100
"""Members of a role that are listed one by one, at most."""
UNWELL = 50
"""Silent members listed first among LISTED, at most."""


class StatusBuilder:
    """Builder of the status, from the view of a run.

    Args:
        cores: cores of this machine that this process may use.
    """

    def __init__(self, view: RunView, *, cores: float | None = None) -> None:
        self._view = view
        self._cores = cores or Machine.here().cores
        self._updates = view.members.totals.sum("learner", "updates")
        self._updated = view.clock.monotonic()
        self._heard: dict[str, float] = {}  # role -> when one of its processes was last heard
        self._held: dict[str, tuple[ModelRef | None, float]] = {}  # modelpool's boot -> its newest model, since when
        self._trained: dict[str, Any] = {}  # figures of the last seconds, as they were shown last

    def build(self, *, finished: bool = False) -> dict[str, Any]:
        """Build the present status; to be called about once a second, for its figures of the last seconds.

        Args:
            finished: this is the last status of a run that has done what was asked.
        """
        view = self._view
        known = view.members
        live = {role: known.leases.live(role) for role in self._roles()}
        rows = known.ledger.rows(known.leases.alive)
        self._note(live, rows)
        faults = [*known.ledger.faults()]
        faults += [f"{policy}: {one.difference} rows are missing" for policy, one in rows.items() if one.difference]
        progress, resumed, training = view.state.progress, view.learners.resumed, self._training(live)
        silent = self._silent(live)
        phase = "finished" if finished else "running" if progress.started else "starting"
        status: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "run": view.life.run,
            "uid": view.life.uid,
            "term": view.life.term,
            "phase": phase,
            "time": round(view.clock.unix(), 3),
            "wall_s": round(view.state.wall_s, 3),
            "cpu_s": {role: round(known.totals.sum(role, "cpu_seconds"), 3) for role in known.totals.roles()},
            "verdict": training["verdict"] | self._ending(),
            "throughput": training["throughput"],
            "replay": figures(view, live["replay"]) if "replay" in live else None,
            "totals": self._totals(),
            "lag": training["lag"],
            "train_return": self._train_return(),
            "train_info": self._train_info(),
            "evaluation": None if progress.evaluation is None else to_plain(progress.evaluation),
            "evaluations": {one.mode: to_plain(one) for one in (progress.other, progress.evaluation) if one},
            "models": {name: self._selected(name) for name in NAMES},
            "recordings": self._recordings(),
            "cadence": self._cadence(),
            "history": [list(point) for point in progress.history],
            "stop": {"conditions": view.settings.stop.model_dump(mode="json", exclude_none=True), "met": progress.met,
                     "not_evaluated": view.evaluations.not_evaluated},
            "policies": {policy: self._policy(policy, rows.get(policy, Rows()), not faults)
                         for policy in view.learners.policies},
            "members": {role: counts(members, silent) for role, members in live.items()},
            "roles": {role: [self._member(one, silent) for one in listed(members, silent)]
                      for role, members in live.items()},
            "init": view.beginning.found,
            "checkpoint": self._checkpoint(),
            "resumed": None if resumed is None else to_plain(resumed),
            "problems": find(self._facts(live, rows, faults, silent), view.life.run),
        }  # fmt: skip
        return {key: _clean(value) for key, value in status.items()}

    def _note(self, live: dict[str, list[Holder]], rows: dict[str, Rows]) -> None:
        """Note the time of the last update, and the rates at which rows reach their fates."""
        view, known = self._view, self._view.members
        updates = known.totals.sum("learner", "updates")
        # a run that ends makes no update; that is no problem
        if updates > self._updates or not live["learner"] or view.stop.phase != "running":
            self._updates, self._updated = max(updates, self._updates), view.clock.monotonic()
        for policy, became in rows.items():
            known.rates.hear(
                f"ledger of {policy}", {"consumed": became.consumed + became.discarded, "stale": became.stale}
            )

    def _roles(self) -> tuple[str, ...]:
        """Roles whose members are shown, in that order."""
        replay = ("replay",) if self._view.settings.roles.replay is not None else ()
        return ("modelpool", *replay, "learner", "actor", "evaluator")

    def _training(self, live: dict[str, list[Holder]]) -> dict[str, Any]:
        """Figures of the last seconds of training; while a run ends, of those before."""
        if self._view.stop.phase == "running" or not self._trained:
            lag = self._view.members.lag.value()
            none: dict[str, float | None] = {"mean": None, "p95": None, "max": None}
            self._trained = {
                "verdict": self._verdict(live),
                "throughput": self._throughput(live),
                "lag": none if lag is None else {"mean": round(lag.mean, 3), "p95": lag.p95, "max": lag.max},
            }
        return self._trained

    def _cadence(self) -> dict[str, float | None]:
        """Cadence of evaluations: as the spec states it, as it was last, and its share of the CPU."""
        view = self._view
        taken = view.evaluations.taken
        return {
            "stated_s": every_s(view.settings),
            "every_s": None if taken is None else round(taken.every_s, 1),
            "cpu_share": None if taken is None or taken.cpu_share is None else round(taken.cpu_share, 4),
        }

    def _selected(self, name: Name) -> dict[str, Any] | None:
        """Selected model of that name: its evaluations, and its files below the folder of the run."""
        found = self._view.evaluations.selection.models.get(name)
        if found is None:
            return None
        files = {part: f"models/{getattr(found, part)}" for part in ("policy", "tensors")}
        return {"version": found.evaluation.ref.version, **to_plain(found), **files}

    def _recordings(self) -> list[dict[str, Any]]:
        """Films of episodes, the newest first; their files are below results/episodes."""
        films = self._view.evaluations.films
        best = films.best(films.episodes)
        return [{**to_plain(one), "best": one is best} for one in reversed(films.episodes)]

    def _ending(self) -> dict[str, str]:
        """Verdict on a run that ends, in place of one on its training; {} before, and at the very end."""
        stop, evaluations = self._view.stop, self._view.evaluations
        if stop.how != "finish" or stop.phase not in ("saving", "telling"):
            return {}
        last = "saving the last generation" if stop.phase == "saving" else "the processes stop"
        return {"kind": "ending", "text": f"ending: {evaluations.text if evaluations.awaits else last}", "suggest": ""}

    def _verdict(self, live: dict[str, list[Holder]]) -> dict[str, Any]:
        """Verdict on the training, and the shares of time that it rests on."""
        view, rates = self._view, self._view.members.rates
        shards = _boots(live.get("replay", ()))
        learners, actors = _boots(live["learner"]), _boots(live["actor"])
        waits = Waits(
            learner_waits_data=_share(rates.mean(learners, "wait_data_seconds")),
            actor_waits_credit=_share(rates.mean(actors, "wait_credit_seconds")),
            actor_waits_model=_share(rates.mean(actors, "wait_model_seconds")),
            learner_waits_model=_share(rates.mean(learners, "wait_model_seconds")),
            actor_simulates=_share(rates.mean(actors, "env_seconds")),
            learner_waits_draw=_share(rates.mean(learners, "wait_draw_seconds")),
            shard_busy=_share(max((busy(rates, boot) for boot in shards), default=0.0)),
        )
        verdict = judge(
            waits,
            samples_per_insert=wanted_ratio(view, shards),
            started=any(view.learners.learning_s(boot) >= SETTLED_S for boot in learners),
            actors=len(actors),
            cores_busy=sum(rates.sum(_boots(members), "cpu_seconds") for members in live.values()),
            cores=self._cores,
            one_machine=view.members.addresses.one_machine,
            run=view.life.run,
            learners=len(learners),
            again=view.learners.resumed is not None
            or (view.state.progress.started and (view.life.term > 1 or not learners)),
            idle_s=view.clock.monotonic() - self._updated - self._batch_s(live["actor"]),
            at_once=self._at_once(),
        )
        return {**to_plain(verdict), **{name: round(share, 4) for name, share in to_plain(waits).items()}}

    def _at_once(self) -> int | None:
        """Number of actors that may play at a time, by the policy that admits the most; None: any number."""
        settings = self._view.settings
        algorithms = () if settings.sync else (settings.policy(name).algorithm for name in settings.policy_names)
        found = [one.actors_at_once(settings.roles.actor.envs) for one in algorithms]
        known = [one for one in found if one is not None]
        return max(known) if known and len(known) == len(found) else None

    def _totals(self) -> dict[str, int]:
        """Totals of all actors, and of all that the present weights were learned from: without updates of a learner
        that died before it was saved, which are in the ledger.
        """
        view = self._view
        learners, policies = view.learners, view.learners.policies
        return {name: int(view.members.totals.sum("actor", name)) for name in ACTING} | {
            "consumed_steps": sum(map(learners.steps, policies)),
            "learned_steps": sum(map(learners.learned, policies)),
            "updates": sum(map(learners.updates, policies)),
        }

    def _throughput(self, live: dict[str, list[Holder]]) -> dict[str, float]:
        found: dict[str, float] = {}
        for role, counted in (("actor", ACTING), ("learner", LEARNING)):
            names = [name for name in counted if name != "episodes"]
            sums = self._view.members.rates.sums(_boots(live[role]), names)
            found |= {f"{name}_per_s": round(sums[name], 3) for name in names}
        return found

    def _train_return(self) -> dict[str, float] | None:
        mean, told = self._view.members.train_return(), self._view.members.heard("actor")
        if mean is None:
            return None
        episodes = [one.counters.get("episodes", 0) for one in told if "train_return" in one.gauges]
        return {"mean": mean, "episodes": sum(min(int(one), RECENT_EPISODES) for one in episodes)}

    def _train_info(self) -> dict[str, float]:
        """Numbers that environments report at the end of episodes: means over actors, each over its newest episodes."""
        told: dict[str, list[float]] = {}
        for one in self._view.members.heard("actor"):
            found = {name.removeprefix(INFO): mean for name, mean in one.gauges.items() if name.startswith(INFO)}
            for name, mean in info_numbers(found).items():
                told.setdefault(name, []).append(mean)
        return {name: math.fsum(told[name]) / len(told[name]) for name in sorted(told)[:MAX_INFO]}

    def _policy(self, policy: str, rows: Rows, balanced: bool) -> dict[str, Any]:
        view = self._view
        models = [one.model for one in view.members.heard("learner") if one.model is not None]
        newest = max(
            (ref for ref in models if ref.policy == policy), key=lambda ref: (ref.lineage, ref.version), default=None
        )
        return {
            "ref": None if newest is None else to_plain(newest),
            "steps": view.learners.steps(policy),
            "learned_steps": view.learners.learned(policy),
            "ledger": {**to_plain(rows), "balanced": balanced},
        }

    def _member(self, holder: Holder, silent: Container[str]) -> dict[str, Any]:
        view, now = self._view, self._view.clock.monotonic()
        seen = view.members.seen.get(holder.boot)
        rates = view.members.rates
        shown = {
            "index": holder.index,
            "boot": holder.boot,
            "joined": seen is not None and not holder.leaving and not seen.gauges.get(RESUMING, 0.0),
            "age_s": round(now - holder.since, 1),
            "silent_s": round(now - holder.heard, 1),
            "model": None if seen is None or seen.model is None else to_plain(seen.model),
            "cpu": round(rates.of(holder.boot, "cpu_seconds"), 2),
            "memory_bytes": None if seen is None else _whole(seen.gauges.get(MEMORY)),
        }
        if holder.role == "replay":
            shown |= {f"{name}_per_s": round(rates.of(holder.boot, name), 1) for name in ("inserted", "sampled")}
        elif holder.role == "actor":
            shown["env_steps_per_s"] = round(rates.of(holder.boot, "env_steps"), 1)
        elif holder.role == "learner":
            shown["updates_per_s"] = round(rates.of(holder.boot, "updates"), 2)
            if seen is not None and seen.gauges.get(WORLD, 1.0) != 1:
                shown |= {"rank": _whole(seen.gauges.get(RANK, 0.0)), "world": _whole(seen.gauges[WORLD])}
        if holder.boot in silent:
            shown["silent"] = True
        return shown

    def _silent(self, live: dict[str, list[Holder]]) -> dict[str, float]:
        """Boots that have been silent for too long -> seconds, minus the usual time between reports. Boots that only an
        earlier manager has heard do not count."""
        view, found = self._view, dict[str, float]()
        for role, members in live.items():
            since = view.clock.monotonic() - 3.0 * (report_every_s(len(view.members.leases), role) - 1.0)
            known = [one for one in members if one.boot in view.members.seen]
            found |= {one.boot: since - one.heard for one in known if since - one.heard >= SILENT_S}
        return found

    def _absent(self, live: dict[str, list[Holder]]) -> dict[str, float]:
        """Seconds since each role without a process, modelpool/0 and each missing shard was last heard, or since this
        manager began to listen; {} once the run ends."""
        view = self._view
        if view.stop.phase != "running":
            return {}
        for role, members in live.items():
            self._heard[role] = max((one.heard for one in members), default=self._heard.get(role, view.state.began))
        now, root = view.clock.monotonic(), view.members.root
        self._heard["modelpool/0"] = self._heard.get("modelpool/0", view.state.began) if root is None else root.heard
        absent = [role for role, members in live.items() if not members]
        if live["modelpool"] and root is None:
            absent.append("modelpool/0")
        if replay := view.settings.roles.replay:
            heard = {f"replay/{one.index}": one.heard for one in live["replay"]}
            shards = [f"replay/{index}" for index in range(replay.replicas)]
            known = {name: at for name, at in self._heard.items() if name.startswith("replay/")}
            for name in known.keys() - set(shards):
                del self._heard[name]  # `scale` may want one of that number again
            since = now if known else view.state.began  # one that is wanted later is waited for from then on
            self._heard |= {name: heard.get(name, known.get(name, since)) for name in shards}
            absent += [name for name in shards if live["replay"] and name not in heard]
        return {one: now - self._heard[one] for one in absent}

    def _behind(self, pools: list[Holder]) -> dict[str, float]:
        """Modelpools with older weights than the first one -> seconds without new ones."""
        members, now = self._view.members, self._view.clock.monotonic()
        newest, held, found = members.published, dict[str, tuple[ModelRef | None, float]](), dict[str, float]()
        for one in pools:
            seen = members.seen.get(one.boot)
            model = None if seen is None else seen.model
            before, since = self._held.get(one.boot, (model, now))
            if newest is None or model != before or (model is not None and newest <= model):
                since = now
            held[one.boot] = model, since
            if now > since:
                found[f"modelpool/{one.index}"] = now - since
        self._held = held
        return found

    def _checkpoint(self) -> dict[str, Any] | None:
        view = self._view
        newest = next(iter(view.learners.usable(view.learners.policies[0])), None)
        if newest is None:
            return None
        age_s = max(view.clock.unix() - newest.created, 0.0)
        return {
            "number": newest.number, "version": newest.ref.version, "steps": newest.steps, "age_s": round(age_s, 1),
            "absent": {_process_of(part): why for part, why in newest.absent.items()},
        }  # fmt: skip

    def _rows_unsaved(self) -> dict[str, tuple[int | None, str]]:
        manifests, found = self._view.checkpoints.manifests, dict[str, tuple[int | None, str]]()
        for policy in self._view.learners.policies:
            for part, number in manifests.without(policy).items():
                found[_process_of(part)] = number, manifests.of(policy)[0].absent[part]
        return found

    def _batch_s(self, actors: list[Holder]) -> float:
        """Seconds that the actors take for the largest batch at their present rate; 0: not known."""
        view = self._view
        per_s = view.members.rates.sum(_boots(actors), "agent_steps")
        batch = max(view.learners.steps_of_update(name) for name in view.learners.policies)
        return batch / per_s if per_s > 0 else 0.0

    def _rejected_per_s(self, members: Iterable[Holder]) -> dict[tuple[str, str], float]:
        """Messages that were rejected per second, by the role that rejects them and the reason."""
        view, known = self._view, self._view.members
        counted = [(one.role, one.boot, known.seen[one.boot].counters) for one in members if one.boot in known.seen]
        found: dict[tuple[str, str], float] = {}
        for role, boot, counters in [*counted, ("manager", view.life.boot, known.totals.of("manager"))]:
            for name in counters:
                stem, _, reason = name.partition(".")
                if stem == "rejected":
                    found[role, reason] = found.get((role, reason), 0.0) + known.rates.of(boot, name)
        return found

    def _late_generation(self) -> tuple[int, float] | None:
        """The generation that is awaited longest, and the seconds since it was ordered; None: none is."""
        checkpoints = self._view.checkpoints
        late = [
            (number, checkpoints.waiting_s(policy))
            for policy in self._view.learners.policies
            if (number := checkpoints.wanted(policy))
        ]
        return max(late, key=lambda one: one[1], default=None)

    def _gauges_of(self, members: Iterable[Holder]) -> dict[str, dict[str, float]]:
        """Gauges of the members that have reported: `learner/0` -> gauges."""
        seen = self._view.members.seen
        return {f"{one.role}/{one.index}": seen[one.boot].gauges for one in members if one.boot in seen}

    def _facts(
        self, live: dict[str, list[Holder]], rows: dict[str, Rows], faults: list[str], silent: dict[str, float]
    ) -> Facts:
        """Facts of this moment, in which `problems` looks for faults of the run."""
        view, now = self._view, self._view.clock.monotonic()
        known = view.members
        ledgers = [f"ledger of {policy}" for policy in rows]
        stale, consumed = known.rates.sum(ledgers, "stale"), known.rates.sum(ledgers, "consumed")
        members = [one for all_of_role in live.values() for one in all_of_role]
        learners = self._gauges_of(live["learner"])
        together = max((int(gauges.get(WORLD, 1.0)) for gauges in learners.values()), default=0)
        wanted = view.settings.roles.learner.replicas
        broken, refusal = view.state.progress.broken, view.admission.refusal
        lately = refusal is not None and now - refusal[1] < REFUSED_S and view.stop.phase == "running"
        ends = view.stop.how == "finish" and view.stop.phase != "running"
        may_save = bool(live["learner"]) and view.stop.phase == "saving"
        return Facts(
            now_s=now - view.state.began,
            silent={f"{one.role}/{one.index}": silent[one.boot] for one in members if one.boot in silent},
            live={role: len(of_role) for role, of_role in live.items()},
            absent=self._absent(live),
            behind=self._behind(live["modelpool"]),
            idle_s=now - self._updated,
            batch_s=self._batch_s(live["actor"]),
            env_step_s=max((_step_s(one.counters) for one in known.heard("actor")), default=0.0),
            started=view.state.progress.started,
            nonfinite=_counted(known.heard("learner"), "nonfinite"),
            optimizer_steps=_counted(known.heard("learner"), "optimizer_steps"),
            ledger_faults=faults,
            quarantined=known.quarantined(),
            residuals=view.outliers.found,
            stale_share=stale / (stale + consumed) if stale else 0.0,
            rejected_per_s=self._rejected_per_s(members),
            late_generation=self._late_generation(),
            late_parts=[
                _process_of(part)
                for policy in view.learners.policies
                for part in view.checkpoints.assembly.lacks(policy)
            ],
            generations_every_s=view.settings.checkpoint.every,
            damaged=view.checkpoints.manifests.newest_damaged,
            unreadable={
                name: int(parts)
                for name, gauges in self._gauges_of(live.get("replay", ())).items()
                if (parts := gauges.get(UNREADABLE, 0.0))
            },
            rows_unsaved=self._rows_unsaved(),
            unusable=view.learners.unusable(),
            lost=view.state.lost,
            disk=view.disk,
            unsaved=view.stop.unsaved if ends and not may_save else "",
            learner_waited_s=view.admission.waited_s,
            refused=refusal[0] if refusal is not None and lately else "",
            broken=None if broken is None else (broken.text, broken.process),
            starved=[name for name, gauges in learners.items() if gauges.get(STARVED, 0.0) > 0],
            apart=(together, wanted) if 0 < together < wanted and view.stop.phase == "running" else None,
            endless_steps=max((one.gauges.get(ENDLESS, 0.0) for one in known.heard("evaluator")), default=0.0),
            standstill=view.evaluations.standstill if view.stop.phase == "running" else None,
        )


def listed(members: Sequence[Holder], silent: Container[str]) -> list[Holder]:
    """Members of a role that are shown, sorted by index: LISTED at most, UNWELL silent ones among them.

    Args:
        members: all of them, by index.
        silent: boots that have been silent for too long.
    """
    if len(members) <= LISTED:
        return list(members)
    shown = {one.index: one for one in [one for one in members if one.boot in silent][:UNWELL]}
    room = LISTED - len(shown)
    for number in range(room):  # uniformly over all of them
        one = members[number * len(members) // room]
        shown.setdefault(one.index, one)
    return [shown[index] for index in sorted(shown)]


def counts(members: Sequence[Holder], silent: Container[str]) -> dict[str, int]:
    """Numbers of members, and of the silent ones among them."""
    return {"live": len(members), "silent": sum(one.boot in silent for one in members)}


def _clean(value: Any) -> Any:
    """Replace NaN and infinities by None, so that the value is valid JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _clean(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_clean(one) for one in value]
    return value


def _boots(members: Iterable[Holder]) -> list[str]:
    return [one.boot for one in members]


def _counted(reports: Iterable[Report], name: str) -> float:
    return sum(one.counters.get(name, 0.0) for one in reports)


def _process_of(part: str) -> str:
    """`replay/0` of `replay0`."""
    role = part.rstrip("0123456789")
    return f"{role}/{part.removeprefix(role)}"


def _step_s(counters: Mapping[str, float]) -> float:
    """Seconds per step of one environment; 0: not known."""
    steps = counters.get("env_steps", 0.0)
    return counters.get("env_seconds", 0.0) / steps if steps else 0.0


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _whole(value: float | None) -> int | None:
    """Integer value of a gauge; None if a process reports none, or not a number."""
    return int(value) if value is not None and abs(value) < 2.0**63 else None
