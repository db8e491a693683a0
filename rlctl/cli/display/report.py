"""Report of a run: the verdict, its roles, its problems, and its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlctl.cli.context import ON_CLUSTERS, WideOutput, World
from rlctl.cli.run.problems import as_lines
from rlctl.cli.run.snapshot import Snapshot
from rlctl.cli.text import age, clock, count, moment_of, number, percent, plain, sparkline, table, whole

if TYPE_CHECKING:
    from rlctl.backends.base import Process


MOST_INFO = 6
"""Numbers reported at the end of episodes (`info`) in one line, at most."""
_DEAR = 0.12
"""Evaluation's share of the CPU from which fewer episodes are advised: it takes as much only where the run computes
little, or training has reached its goal."""


def headline(snapshot: Snapshot) -> str:
    """The verdict in one line: what limits the run, or how it ended."""
    state, status = snapshot.state, snapshot.status
    if snapshot.phase == "failed":
        return f"failed: {state.failure.text}" if state.failure else "failed"
    if snapshot.phase == "finished":
        return f"finished: {status['stop']['met'] or 'a stop condition is met'}"
    if snapshot.phase == "stopped":
        return "stopped; its data stays"
    if snapshot.silent:
        return "the manager does not answer; figures are what it said last"
    if snapshot.phase == "starting":
        return f"starting: waiting for {snapshot.slowest or 'the first experience'}"
    if status["stop"]["met"] and status["verdict"]["kind"] != "ending":
        return f"ending: {status['stop']['met']}"
    return str(status["verdict"]["text"])


def shares(snapshot: Snapshot) -> str:
    """Shares of time spent waiting, in per cent, on which the verdict rests."""
    verdict = snapshot.status["verdict"]
    drawn = f" ({percent(verdict['learner_waits_draw'])} for draws)" if snapshot.status["replay"] else ""
    return (
        f"waiting: learner for data {percent(verdict['learner_waits_data'])}{drawn}, "
        f"actors for credit {percent(verdict['actor_waits_credit'])}, "
        f"for models {percent(verdict['actor_waits_model'])}"
    )


def report(world: World, snapshot: Snapshot, *, utc: bool) -> list[str]:
    """The report as lines: verdict, facts, roles or processes, problems."""
    state, status = snapshot.state, snapshot.status
    lines = [world.bold(plain(headline(snapshot)))]
    if snapshot.phase == "running" and not snapshot.silent and not snapshot.ending:
        lines.append("  " + shares(snapshot))
        if status["verdict"]["suggest"]:
            lines.append(f"  next: {status['verdict']['suggest']}")
    where = f"{snapshot.where or state.target}, {state.uid[:8]}, started {moment_of(state.created, utc=utc)}"
    lines += [
        "",
        *table([("run", f"{state.run}: {snapshot.phase}, {clock(status['wall_s'])} on {where}"), *_facts(snapshot)]),
    ]
    rows = _processes(world, snapshot) if world.output == WideOutput.wide else _roles(world, snapshot)
    lines += ["", *table(rows)]
    problems = snapshot.problems()
    if problems:
        lines.append("")
    lines += as_lines(problems)
    if snapshot.over:
        lines += ["", f"data: {state.storage}"]
    return lines


def _facts(snapshot: Snapshot) -> list[tuple[str, str]]:
    status = snapshot.status
    lag, evaluation = status["lag"], status["evaluation"]
    facts = [
        ("speed", _speed(snapshot)),
        ("so far", _so_far(status)),
    ]
    if evaluation:
        curve = sparkline([point[2] for point in status["history"]], 24)
        facts.append(("return", f"{evaluation_text(evaluation)} {curve}".rstrip()))
    if status["stop"]["not_evaluated"]:
        facts.append(("" if evaluation else "return", plain(status["stop"]["not_evaluated"])))
    if evaluation and (info := info_text(evaluation.get("info", {}))):
        facts.append(("", info))
    facts += [("", evaluation_text(one)) for one in other_modes(status)]
    if evaluation and (cadence := cadence_text(status["cadence"])):
        facts.append(("", cadence))
    if status["train_return"]:
        facts.append(("training", _training(status)))
    if info := info_text(status["train_info"]):
        facts.append(("", info))
    for condition, goal in status["stop"]["conditions"].items():
        facts.append(("goal", f"{condition} {clock(goal) if condition == 'wall_time' else number(goal)}"))
    facts += _selected(status)
    if lag["mean"] is not None:
        facts.append(
            ("lag", f"mean {number(lag['mean'])}, p95 {number(lag['p95'])}, max {number(lag['max'])} versions")
        )
    if status["replay"]:
        facts += zip(("replay", "", ""), replay_text(status["replay"]), strict=False)
    if status["init"]:
        facts.append(("began from", plain(str(status["init"]["text"]))))
    if status["checkpoint"]:
        point = status["checkpoint"]
        ago = "" if snapshot.over else f", {age(point['age_s'])} ago"
        without = ", ".join(point.get("absent") or ())
        lacks = f", without the rows of {plain(without)}" if without else ""
        facts.append(("saved", f"generation {point['number']} at {whole(point['steps'])} steps{ago}{lacks}"))
    if status["resumed"]:
        facts.append(("resumed", str(status["resumed"]["text"])))
    if snapshot.crashes():
        facts.append(("note", plain(snapshot.crashes())))
    if snapshot.phase == "running":
        facts += [("note", plain(process.lately)) for process in snapshot.processes if process.lately]
    return facts


def replay_text(replay: Mapping[str, Any]) -> list[str]:
    """Lines about a replay: its rows and shards, its rates, its samples per insert and its stale priorities."""
    shards, wanted, stale = replay["shards"], replay["wanted_samples_per_insert"], replay["stale_priorities"]
    if not replay["capacity"]:
        return [f"0 of {shards['wanted']} shards have reported"]
    answer = "-" if shards["answer"] is None else shards["answer"]
    ratio = "no limit" if wanted is None else f"{number(wanted)} wanted"
    return [
        f"{whole(replay['rows'])} rows of {whole(replay['capacity'])}, {whole(replay['drawable'])} can be drawn; "
        f"{answer} of {shards['wanted']} shards answer"
        + (f"; {whole(replay['dropped'])} went with shards that ended" if replay.get("dropped") else ""),
        f"{whole(replay['inserted'])} inserted, {count(replay['inserted_per_s'])}/s; "
        f"{whole(replay['sampled'])} sampled, {count(replay['sampled_per_s'])}/s",
        f"{number(replay['samples_per_insert'])} samples per insert, {ratio}"
        + ("" if stale is None else f"; {percent(stale)} of the priorities came for rows that are gone"),
    ]


def steps_are_missing(totals: Mapping[str, Any]) -> bool:
    """Whether the learner has reported more steps than the actors, whose reports are then incomplete."""
    return bool(totals["consumed_steps"] > totals["agent_steps"])


def _so_far(status: Mapping[str, Any]) -> str:
    totals = status["totals"]
    discarded = sum((policy.get("ledger") or {}).get("discarded", 0) for policy in status["policies"].values())
    more = f" ({whole(discarded)} rows of the ledger were discarded in crashes)" if discarded else ""
    reuse = totals["learned_steps"] / max(totals["consumed_steps"], 1)
    more += f", each learned from {reuse:.1f} times in all passes" if reuse >= 1.05 else ""
    learned = f"{whole(totals['consumed_steps'])} consumed steps{more}, {whole(totals['updates'])} updates"
    if steps_are_missing(totals):
        return f"{learned}; not all env steps are reported"
    return f"{whole(totals['env_steps'])} env steps, {learned}, {whole(totals['episodes'])} episodes"


def _speed(snapshot: Snapshot) -> str:
    """Rates: the current ones of a live run, the mean ones once it is over."""
    rate, totals, wall_s = snapshot.status["throughput"], snapshot.status["totals"], snapshot.status["wall_s"]
    if not snapshot.over:
        return (
            f"{count(rate['env_steps_per_s'])} env steps/s, {count(rate['consumed_steps_per_s'])} consumed steps/s, "
            f"{number(rate['updates_per_s'])} updates/s"
        )
    if not wall_s:
        return "-"
    steps, consumed = totals["env_steps"] / wall_s, totals["consumed_steps"] / wall_s
    return f"{count(steps)} env steps/s, {count(consumed)} consumed steps/s over the whole run"


def _training(status: Mapping[str, Any]) -> str:
    return f"{number(status['train_return']['mean'])} over {status['train_return']['episodes']} episodes"


def info_text(means: Mapping[str, float | None]) -> str:
    """`is_success 0.43, score 12 and 3 more`: numbers that environments report at the end of episodes; "": none."""
    shown = [f"{plain(name)} {number(mean)}" for name, mean in means.items() if mean is not None]
    more = f" and {len(shown) - MOST_INFO} more" if len(shown) > MOST_INFO else ""
    return ", ".join(shown[:MOST_INFO]) + more


def other_modes(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The newest evaluation in each mode other than the one that counts."""
    counts = (status["evaluation"] or {}).get("mode")
    return [one for mode, one in status["evaluations"].items() if mode != counts]


def _selected(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The best model, and the one that has reached the goal."""
    rows = []
    for name, found in status["models"].items():
        if found:
            reached = f"reaches {number(found['goal'])}: " if name == "goal" else ""
            rows.append(("best" if name == "best" else "", reached + evaluation_text(found["evaluation"])))
    return rows


def evaluation_text(evaluation: Mapping[str, Any]) -> str:
    """`487.3 ± 12.1 over 100 episodes, greedy on fresh seeds, version 96`."""
    version = (evaluation.get("ref") or {}).get("version")
    of = "" if version is None else f", version {version}"
    if (seats := evaluation.get("seats", 1)) > 1:
        of += f"; of the first of {seats} seats, all played by it"
    how = f"{evaluation['mode']}{' on fresh seeds' if evaluation.get('confirms') else ''}"
    mean, std = number(evaluation["mean"]), number(evaluation["std"])
    return f"{mean} ± {std} over {evaluation['episodes']} episodes, {how}{of}"


def cadence_text(cadence: Mapping[str, Any] | None) -> str:
    """`one evaluation each 14s, 8 % of the run's CPU`, with advice where that is much; "": not known."""
    if not cadence or cadence["every_s"] is None:
        return ""
    text = f"one evaluation each {age(cadence['every_s'])}, {percent(cadence['cpu_share'])} of the run's CPU"
    if cadence["stated_s"] is None and (cadence["cpu_share"] or 0.0) >= _DEAR:
        text += "; with fewer evaluation.episodes it is less"
    return text


def _roles(world: World, snapshot: Snapshot) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("ROLE", "READY", "STATE", "RESTARTS", "AGE")]
    for role, wanted in snapshot.state.replicas.items():
        members = snapshot.members(role)
        rows.append(
            (
                role,
                ready_of(snapshot, role, wanted),
                role_state(snapshot, role),
                _restarts(snapshot, members),
                _age(world, members),
            )
        )
    return rows


def ready_of(snapshot: Snapshot, role: str, wanted: int) -> str:
    """Replicas that run and have joined: `3/4`, or `?/4` where the target does not say."""
    return f"{'?' if snapshot.unseen else snapshot.ready_of(role)}/{wanted}"


def role_state(snapshot: Snapshot, role: str) -> str:
    """The states of a role's replicas: `running`, or `5 running, 1 backoff`."""
    states: Counter[str] = Counter()
    for process in snapshot.members(role):
        states[process.state] += process.count
    if not states:
        return "-" if snapshot.over or not snapshot.state.replicas.get(role) else "missing"
    kinds = sorted(states, key=lambda state: (-states[state], state))
    return kinds[0] if len(kinds) == 1 else ", ".join(f"{states[state]} {state}" for state in kinds)


def _processes(world: World, snapshot: Snapshot) -> list[tuple[str, ...]]:
    named = any(process.name for process in snapshot.processes)
    rows: list[tuple[str, ...]] = [
        ("PROCESS", "STATE", "PID", "RESTARTS", "AGE", "SILENT", "MODEL", "ENV-STEPS/S",
         *(["NAME"] if named else []), "REASON")
    ]  # fmt: skip
    for process in snapshot.processes:
        member = snapshot.reported(process.role, process.index)
        model = member.get("model") or {}
        rows.append(
            (
                _which(process),
                process.state,
                str(process.pid or "-"),
                _restarts(snapshot, [process]),
                _age(world, [process]),
                age(member["silent_s"]) if member.get("silent_s") is not None else "-",
                f"{model['policy']} v{model['version']}" if model else "-",
                count(member.get("env_steps_per_s")),
                *([process.name or "-"] if named else []),
                process.reason or process.trouble,
            )
        )
    return rows


def _which(process: Process) -> str:
    """`actor/7`, `actor x3` for a group, or `actor` where replicas have no order, as pods of a Deployment."""
    if process.count > 1:
        return f"{process.role} x{process.count}"
    ordered = not process.name or process.name.endswith(f"-{process.index}")
    return f"{process.role}/{process.index}" if ordered else process.role


def _age(world: World, members: list[Process]) -> str:
    started = [process.started for process in members if process.started]
    return age(max(0.0, (world.now() - min(started)).total_seconds())) if started else "-"


OUTCOMES = ("consumed", "discarded", "dropped", "stale", "fenced", "invalid", "lost", "in_flight")


def final(snapshot: Snapshot) -> list[str]:
    """Lines of the table at the end of a run."""
    status = snapshot.status
    totals, wall_s, evaluation, lag = status["totals"], status["wall_s"], status["evaluation"], status["lag"]
    rows: list[tuple[str, str]] = []
    if evaluation:
        rows.append(("return", evaluation_text(evaluation)))
        rows.append(("", f"lowest {number(evaluation['min'])}, highest {number(evaluation['max'])}"))
        if info := info_text(evaluation.get("info", {})):
            rows.append(("", info))
    else:
        rows.append(("return", "not evaluated"))
    if status["stop"]["not_evaluated"]:
        rows.append(("", plain(status["stop"]["not_evaluated"])))
    rows += [("", evaluation_text(one)) for one in other_modes(status)]
    if status["train_return"]:
        rows.append(("training", _training(status)))
    rows += _selected(status)
    rows.append(("wall time", clock(wall_s)))
    rows.append(("env steps", whole(totals["env_steps"])))
    rows.append(("consumed", f"{whole(totals['consumed_steps'])} agent steps in {whole(totals['updates'])} updates"))
    cpu_s = status["cpu_s"]
    each = ", ".join(f"{role} {seconds:.0f}" for role, seconds in sorted(cpu_s.items(), key=lambda entry: -entry[1]))
    rows.append(("CPU", f"{sum(cpu_s.values()):.0f} s" + (f": {each}" if each else "")))
    rows.append(("speed", _speed(snapshot)))
    if lag["mean"] is not None:
        rows.append(("lag", f"mean {number(lag['mean'])}, max {number(lag['max'])} versions"))
    for policy, entry in status["policies"].items():
        rows.append(
            ("ledger" if len(status["policies"]) == 1 else f"ledger {policy}", ledger_text(entry.get("ledger") or {}))
        )
    if snapshot.crashes():
        rows.append(("note", plain(snapshot.crashes())))
    return [f"{snapshot.state.run} {headline(snapshot)}", *table(rows, indent="  ")]


def ledger_text(ledger: Mapping[str, Any]) -> str:
    """`balanced: 312,000 rows produced = 300,000 consumed + 12,000 in flight`; outcomes of zero are left out.

    Rows are more than agent steps: each episode's end adds one that is learned from with weight zero.
    """
    parts = [f"{whole(ledger[name])} {name.replace('_', ' ')}" for name in OUTCOMES if ledger.get(name)]
    verdict = "balanced" if ledger.get("balanced") else "NOT balanced"
    sign = "=" if ledger.get("balanced") else "against"
    return f"{verdict}: {whole(ledger.get('produced', 0))} rows produced {sign} {' + '.join(parts) or '0'}"


def look_next(snapshot: Snapshot) -> list[str]:
    """Next commands when a run is over."""
    run, storage = snapshot.state.run, snapshot.state.storage
    on_disk = snapshot.state.target == "local"
    return [
        f"  results       {storage}/results",
        f"  curves        tensorboard --logdir {storage}/results/tensorboard"
        if on_disk
        else f"  curves        rlctl open tensorboard {run}",
        f"  logs          rlctl logs --run {run}",
        f"  status        rlctl status {run}",
    ]


def failure(snapshot: Snapshot) -> list[str]:
    """The first cause, the last lines of that process, and the processes that were stopped because of it."""
    cause = snapshot.state.failure
    if cause is None:
        return []
    lines = (
        [f"last lines of {cause.process}:", *(f"  | {plain(line)}" for line in cause.last_lines)]
        if cause.last_lines
        else []
    )
    if cause.stopped_because:
        lines.append(f"stopped because of it: {', '.join(cause.stopped_because)}")
    return lines


def _restarts(snapshot: Snapshot, members: Sequence[Process]) -> str:
    """Restarts of a role: `3+` at least, `-` not known: of healthy pods a cluster gives the number alone."""
    total = sum(process.restarts for process in members)
    if snapshot.state.target in ON_CLUSTERS and any(not one.name and one.state == "running" for one in members):
        return f"{total}+" if total else "-"
    return str(total)
