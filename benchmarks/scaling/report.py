"""What the scaling figures say, in tables and in plain sentences."""

from __future__ import annotations

from benchmarks.shared import store, tables, usl
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row

PLOTTED = {"steps_per_s": "per second", "steps_per_cpu_s": "per CPU second"}
WANTED = 20.0
MANY = 100


def table(rows: list[Row]) -> list[str]:
    lines: list[str] = []
    for latency in store.distinct(rows, "latency_ms"):
        for cpu in store.distinct(rows, "cpu_ms"):
            found = store.where(rows, latency_ms=latency, cpu_ms=cpu)
            if found:
                lines += [f"**{latency} ms latency, {cpu} ms CPU a step.** {law(found)}", "", *cells(found), ""]
    lines += ["**What may be said.**", "", *(f"- {one}" for one in sentences(rows)), ""]
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
            body.append([name(who, count), *shown, efficiency, memory, "; ".join(failed)])
    return tables.table(["", "agent steps/s", "per CPU s", "efficiency", "PSS of actors, MiB", ""], body)


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


def of(rows: list[Row], who: str, count: str) -> str:
    """T(N) / (N T(1)) with its interval."""
    known = repeats(rows, who)
    if who not in ("torch", "light") or 1 not in known or int(count) not in known:
        return ""
    one = next(one for one in usl.efficiency(known) if one.workers == int(count))
    return f"{one.value:.2f} ({one.low:.2f}-{one.high:.2f})"


def law(rows: list[Row]) -> str:
    """The fitted law of the light actors, and how far they grow linearly."""
    known = repeats(rows, "light")
    if len(known) < 3 or 1 not in known:
        return "Too few cells count for a fit."
    found = usl.fit_with_intervals(known)
    sigma, kappa = found.law.sigma, found.law.kappa
    linear = usl.linear_to(usl.efficiency(known))
    return (
        f"Universal Scalability Law: one actor {tables.number(found.law.rate)}/s, contention {sigma:.4f} "
        f"({found.sigma.low:.4f}-{found.sigma.high:.4f}), crosstalk {kappa:.2e} ({found.kappa.low:.2e}-"
        f"{found.kappa.high:.2e}); linear (lower end of efficiency at least {usl.LINEAR}) to {linear} actors."
    )


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
    """The most that actors reach, as a multiple of each baseline."""
    count = max(known, key=lambda n: known[n])
    most = known[count]
    single = max((spread(values).median for values in repeats(rows, "single").values()), default=0.0)
    naive = max((spread(values).median for values in repeats(rows, "naive").values()), default=0.0)
    parts = [f"{count} actors reach {tables.number(most)} steps/s"]
    for what, rate in (
        ("the naive loop", naive),
        ("the best single process", single),
        ("one actor", known.get(1, 0.0)),
    ):
        if rate:
            holds = "20x holds" if most >= WANTED * rate else "20x does not hold"
            parts.append(f"{most / rate:.1f}x {what} ({holds})")
    if 1 in known:
        linear = usl.linear_to(usl.efficiency(repeats(rows, "light")))
        parts.append(f"linear to {linear} actors" if linear > 1 else "not linear")
    return ", ".join(parts) + "."


def soaked(rows: list[Row]) -> list[str]:
    """The long form."""
    if not rows:
        return []
    row = rows[-1]
    if row.get("failed"):
        return [f"**{row['actors']} actors under kills**: failed: {row['failed']}"]
    facts = [
        ("actors alive at the end, and fewest at a minute's end", f"{row['ids_alive']}, {row['fewest_alive']}"),
        ("agent steps/s consumed", tables.number(float(row["steps_per_s"]))),
        ("least Jain fairness of a minute", row["jain_least"]),
        ("least share of a minute, as a multiple of the median", row["share_least"]),
        ("kills, of which not yet recovered at the end", f"{row['kills']}, {row['not_recovered']}"),
        ("recovery p50 / p95, s", f"{row['recovery_p50_s']} / {row['recovery_p95_s']}"),
        (
            "ledger: produced = consumed + stale + lost + in flight",
            "balances" if row["balanced"] == "1" else "does not",
        ),
        ("produced, consumed, stale, lost rows", ", ".join(row[k] for k in ("produced", "consumed", "stale", "lost"))),
        ("lost segments per kill (of one environment each)", row["lost_segments_per_kill"]),
        ("PSS of all actors MiB, threads, sockets", f"{row['pss_mib']}, {row['threads']}, {row['sockets']}"),
    ]
    holds = float(row["jain_least"]) >= 0.95 and float(row["share_least"]) >= 0.5 and row["balanced"] == "1"
    long = float(row["seconds"]) >= 600 and int(row["actors"]) >= MANY
    verdict = '"100+" holds' if holds and long else '"100+" is not shown by this run'
    title = f"**{row['actors']} actors for {row['seconds']} s, one killed every {row['kill_every_s']} s**: {verdict}."
    return [title, "", *tables.table(["", "value"], [[what, value] for what, value in facts])]
