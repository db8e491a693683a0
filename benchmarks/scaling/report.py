"""Report of the scaling figures, in tables and in plain sentences."""

from __future__ import annotations

from benchmarks.scaling.settings import SEGMENT_STEPS
from benchmarks.scaling.shares import WHO
from benchmarks.shared import store, tables, usl
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row

PLOTTED = {"steps_per_s": "per second", "steps_per_cpu_s": "per CPU second"}
WANTED = 20.0
MANY = 100
REPEATS = 3
"""Fewest repeats for an interval."""
POLICIES = (
    "The naive loop and the single process act with torch, actors without it in numpy: a ratio of the two compares "
    "that, too, and the more so the less a step waits."
)


def table(rows: list[Row]) -> list[str]:
    lines: list[str] = []
    grid = [row for row in rows if row["who"] != "soak"]
    for latency in store.distinct(grid, "latency_ms"):
        for cpu in store.distinct(grid, "cpu_ms"):
            found = store.where(grid, latency_ms=latency, cpu_ms=cpu)
            if found:
                lines += [f"**{latency} ms latency, {cpu} ms CPU a step.** {law(found)}", "", *cells(found), ""]
    lines += ["**What may be said.**", "", *(f"- {one}" for one in sentences(grid)), "", POLICIES, ""]
    return lines + soaked(store.where(rows, who="soak"))


def cells(rows: list[Row]) -> list[str]:
    """One line per baseline and number of actors."""
    body = []
    for who in ("naive", "single", "torch", "light"):
        for count in sorted(store.distinct(store.where(rows, who=who), "actors"), key=int):
            found = store.where(rows, who=who, actors=count)
            failed = {row["failed"] for row in found if row.get("failed")}
            shown = [tables.measured(found, column) for column in ("steps_per_s", "steps_per_cpu_s")]
            efficiency = of(rows, who, count)
            memory = tables.measured(found, "pss_mib") if who in ("torch", "light") else ""
            body.append([name(who, count), *shown, taken(found), efficiency, memory, "; ".join(failed)])
    share = f"CPU ms a step of {', '.join(WHO)}"
    return tables.table(["", "agent steps/s", "per CPU s", share, "efficiency", "PSS of actors, MiB", ""], body)


def taken(rows: list[Row]) -> str:
    """CPU of a step by process, in medians; "" where there is but one process."""
    shares = [store.kept(rows, f"{who}_cpu_ms") for who in WHO]
    return ", ".join(f"{spread(values).median:.3f}" for values in shares) if all(shares) else ""


def name(who: str, count: str) -> str:
    """As a reader knows it."""
    actors = "1 actor" if count == "1" else f"{count} actors"
    return {
        "naive": "naive loop",
        "single": f"one process, {count} environments as one batch",
        "torch": f"rlctl, {actors}",
        "light": f"rlctl, {actors} without torch",
    }[who]


def repeats(rows: list[Row], who: str) -> dict[int, list[float]]:
    """Number of actors -> steps per second of the cells that count."""
    found = {}
    for count in store.distinct(store.where(rows, who=who), "actors"):
        values = store.kept(store.where(rows, who=who, actors=count), "steps_per_s")
        if values and min(values) > 0:
            found[int(count)] = values
    return found


def repeated(known: dict[int, list[float]]) -> bool:
    """Whether every number of actors was measured often enough for an interval."""
    return min(map(len, known.values())) >= REPEATS


def of(rows: list[Row], who: str, count: str) -> str:
    """T(N) / (N T(1)), with its interval where there are repeats."""
    known = repeats(rows, who)
    if who not in ("torch", "light") or 1 not in known or int(count) not in known:
        return ""
    one = next(one for one in usl.efficiency(known) if one.workers == int(count))
    enough = repeated({n: known[n] for n in (1, int(count))})
    return f"{one.value:.2f} ({one.low:.2f}-{one.high:.2f})" if enough else f"{one.value:.2f}"


def law(rows: list[Row]) -> str:
    """The fitted law of the light actors, and how far they grow linearly."""
    known = repeats(rows, "light")
    if len(known) < 3 or 1 not in known:
        return "Too few cells count for a fit."
    found = usl.fit_with_intervals(known)
    sigma, kappa = found.law.sigma, found.law.kappa
    said = f"Universal Scalability Law: one actor {tables.number(found.law.rate)}/s, contention {sigma:.4f}"
    if not repeated(known):
        return f"{said}, crosstalk {kappa:.2e}; no intervals below {REPEATS} repeats, so nothing is called linear."
    return (
        f"{said} ({found.sigma.low:.4f}-{found.sigma.high:.4f}), crosstalk {kappa:.2e} ({found.kappa.low:.2e}-"
        f"{found.kappa.high:.2e}); linear (lower end of efficiency at least {usl.LINEAR}) to {counted(linear(known))}."
    )


def linear(known: dict[int, list[float]]) -> int:
    """The most actors up to which growth is linear."""
    return usl.linear_to(usl.efficiency(known))


def counted(actors: int) -> str:
    """In words."""
    return "1 actor" if actors == 1 else f"{actors} actors"


def sentences(rows: list[Row]) -> list[str]:
    """Which of "20x", "100+" and "linear" holds, and when; nothing that was not measured."""
    said = []
    for latency in store.distinct(rows, "latency_ms"):
        for cpu in store.distinct(rows, "cpu_ms"):
            found = store.where(rows, latency_ms=latency, cpu_ms=cpu)
            known = {int(count): spread(values).median for count, values in repeats(found, "light").items()}
            if known:
                said.append(f"{latency} ms latency, {cpu} ms CPU: {compared(found, known)}")
    return said or ["nothing: no cell counts"]


def compared(rows: list[Row], known: dict[int, float]) -> str:
    """The most that actors reach, as a multiple of each baseline in the same round."""
    count = max(known, key=lambda n: known[n])
    parts = [f"{counted(count)} without torch reach {tables.number(known[count])} steps/s"]
    for what, who, counts in (
        ("the naive loop, which acts with torch", "naive", None),
        ("the best single process, which acts with torch", "single", None),
        ("one such actor", "light", 1),
    ):
        pairs = ratios(rows, count, who, counts)
        if pairs:
            found = spread(pairs)
            within = f", {found.low:.1f}-{found.high:.1f}; n {found.repeats}" if found.repeats > 1 else "; n 1"
            holds = "20x holds" if found.median >= WANTED else "20x does not hold"
            parts.append(f"{found.median:.1f}x {what} ({holds}{within})")
    repeats_of = repeats(rows, "light")
    if 1 in repeats_of and repeated(repeats_of):
        reached = linear(repeats_of)
        parts.append(f"linear to {reached} actors" if reached > 1 else "not linear")
    return ", ".join(parts) + "."


def ratios(rows: list[Row], actors: int, who: str, count: int | None) -> list[float]:
    """Of each round in which both were kept, all of a baseline's cells: so many light actors over its fastest.

    Args:
        rows: of one latency and CPU.
        actors: of the light ones.
        who, count: of the baseline; None: the number of environments that is the fastest in that round.
    """
    found = []
    counts = store.distinct(store.where(rows, who=who), "actors") if count is None else [str(count)]
    for number in store.distinct(rows, "round"):
        of_round = store.where(rows, round=number)
        ours = store.kept(store.where(of_round, who="light", actors=actors), "steps_per_s")
        base = [store.kept(store.where(of_round, who=who, actors=one), "steps_per_s") for one in counts]
        if ours and base and all(base) and (fastest := max(values[0] for values in base)) > 0:
            found.append(ours[0] / fastest)
    return found


def soaked(rows: list[Row]) -> list[str]:
    """The long form."""
    if not rows:
        return []
    row = rows[-1]
    if row.get("failed"):
        return [f"**{row['actors']} actors under kills**: failed: {row['failed']}"]
    text = {name: row.get(name, "") or "-" for name in SOAKED}
    facts = [
        ("actors alive at the end, and fewest at a minute's end", f"{text['ids_alive']}, {text['fewest_alive']}"),
        ("agent steps/s consumed", tables.measured([row], "steps_per_s")),
        ("least Jain fairness of a minute", text["jain_least"]),
        ("least share of a minute, as a multiple of the median", text["share_least"]),
        (
            "kills, of which the product's own actors, not yet recovered at the end",
            f"{text['kills']}, {text['kills_of_real']}, {text['not_recovered']}",
        ),
        (
            "s from SIGKILL of one of the product's actors, with torch, until its first segment: p50, p95",
            f"{text['recovery_real_p50_s']}, {text['recovery_real_p95_s']}",
        ),
        (
            "s from SIGKILL of an actor without torch, which the benchmark forks anew, until it steps: p50, p95",
            f"{text['recovery_p50_s']}, {text['recovery_p95_s']}",
        ),
        (
            "ledger: produced = consumed + stale + lost + in flight",
            "balances" if text["balanced"] == "1" else "does not",
        ),
        (", ".join(LEDGER).replace("_", " ") + " rows", ", ".join(text[name] for name in LEDGER)),
        ("lost segments per kill (of one environment each)", text["lost_segments_per_kill"]),
        ("rows stepped, as the actors count, that the ledger does not know", text["unwritten_rows"]),
        ("PSS MiB, threads, sockets of the actors without torch", ", ".join(text[name] for name in USED)),
    ]
    missing = lacking(row)
    verdict = '"100+" holds' if not missing else f'"100+" is not shown by this run: {"; ".join(missing)}'
    title = (
        f"**{text['actors']} actors without torch and {text['real']} of the product's own for {text['seconds']} s, one "
        f"killed every {text['kill_every_s']} s, {text['latency_ms']} ms latency, {text['cpu_ms']} ms CPU a step**: "
        f"{verdict}."
    )
    return [title, "", *tables.table(["", "value"], [[what, value] for what, value in facts])]


LEDGER = ("produced", "consumed", "stale", "lost", "in_flight")
USED = ("pss_mib", "threads", "sockets")
SOAKED = (
    "actors", "real", "seconds", "kill_every_s", "latency_ms", "cpu_ms", "ids_alive", "fewest_alive", "jain_least",
    "share_least", "kills", "kills_of_real", "not_recovered", "recovery_p50_s", "recovery_p95_s", "recovery_real_p50_s",
    "recovery_real_p95_s", "balanced", "lost_segments_per_kill", "unwritten_rows", *LEDGER, *USED,
)  # fmt: skip


def lacking(row: Row) -> list[str]:
    """Conditions of "100+" that a soak does not show; a missing figure shows none."""
    value = {name: float(row.get(name, "") or "nan") for name in SOAKED}
    lives = value["actors"] + value["real"] + value["kills"]
    needs = {
        f"at least {MANY} actors": value["actors"] >= MANY and value["fewest_alive"] >= MANY <= value["ids_alive"],
        "600 s": value["seconds"] >= 600,
        "a Jain fairness of 0.95": value["jain_least"] >= 0.95,
        "half the median for everybody": value["share_least"] >= 0.5,
        "kills, of the product's own actors too": value["kills"] > value["kills_of_real"] > 0,
        "everybody back": value["not_recovered"] == 0,
        "a ledger that balances": value["balanced"] == 1,
        "at most one segment lost per kill": value["lost_segments_per_kill"] <= 1,
        "at most one segment per life that the ledger does not know": 0 <= value["unwritten_rows"]
        <= lives * SEGMENT_STEPS,
    }  # fmt: skip
    return [f"it lacks {what}" for what, holds in needs.items() if not holds]
