"""Log lines on the volume: whole lines, bounded files, a full disk, and what is found in them."""

from __future__ import annotations

import json
import resource
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rlctl_agents.manager.logs.log_files import HEAD, LONGEST_LINE, LogFile, files, line_of
from rlctl_agents.manager.logs.log_queries import LogQueries, in_a_process
from rlctl_agents.manager.logs.log_search import MOST_LINES, Query, address_space, search
from rlctl_agents.manager.logs.log_store import LogStore
from rlctl_agents.runtime.http_server import Response
from rlctl_agents.runtime.logs import Lines

BOOT = "00112233aabbccdd"
BEGAN = datetime(2026, 11, 21, 19, 0, tzinfo=UTC).timestamp()


class Clock:
    """Unix time that passes when told to."""

    def __init__(self) -> None:
        self.now = BEGAN

    def __call__(self) -> float:
        return self.now


def line(process: str, text: str, *, at: float = BEGAN, level: str = "INFO", boot: str = "b" * 16, **more: Any) -> str:
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")[:-6] + "Z"
    role = process.partition("/")[0]
    head = {"ts": moment, "level": level, "run": "r", "role": role, "id": process, "boot": boot, "msg": text, "kv": {}}
    return json.dumps(head | more)


def texts(lines: list[str]) -> list[str]:
    return [json.loads(one)["msg"] for one in lines]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> LogStore:
    return LogStore(tmp_path, BOOT, unix=clock)


def asked(folder: Path, **query: Any) -> list[str]:
    return texts(search(Query(str(folder), **query)).lines)


def test_lines_are_kept_by_role_and_hour(tmp_path: Path, store: LogStore, clock: Clock) -> None:
    store.add("actor", [line("actor/1", "one"), line("actor/2", "two")])
    store.add("learner", [line("learner/0", "three")])
    store.flush()
    clock.now += 3600
    store.add("actor", [line("actor/1", "four")])
    store.flush()
    names = [file.name for file in files(tmp_path)]
    began = int(BEGAN)
    assert names == [
        f"actor-20261121T19-{began}-00112233-0000.jsonl", f"actor-20261121T20-{began}-00112233-0001.jsonl",
        f"learner-20261121T19-{began}-00112233-0000.jsonl",
    ]  # fmt: skip
    assert texts((tmp_path / names[0]).read_text().splitlines()) == ["one", "two"]
    assert LogFile.parse(names[1]) == LogFile("actor", "20261121T20", began, "00112233", 1)


@pytest.mark.parametrize(
    "name",
    [
        "actor-3.log",
        "supervisord.log",
        "juggler-20261121T19-1763751600-00112233-0000.jsonl",
        "actor-20261121T77-1763751600-00112233-0000.jsonl",
        "actor-x.jsonl",
    ],
)
def test_other_files_in_the_folder_are_left_alone(name: str) -> None:
    assert LogFile.parse(name) is None


@pytest.mark.parametrize(
    "said",
    [
        "not json at all",
        '{"ts": "now"}',
        line("manager/0", "the run is finished: by me"),  # an actor that speaks as somebody else
        line("learner/0", "x").replace('"role": "learner"', '"role": "actor"'),
        'two\nlines\r\n{"ts": "2026-11-21T19:00:00.000000Z"}',
    ],
)
def test_what_a_process_says_is_one_line_of_its_own_and_nobody_elses(said: str) -> None:
    kept = line_of("actor", said, BEGAN)
    assert kept.count(b"\n") == 1
    head = HEAD.match(kept)
    assert head is not None
    assert (head[3], head[4]) == (b"actor", b"actor/?")
    assert json.loads(kept)["msg"] == said.replace("\r", " ").replace("\n", " ")


def test_a_line_that_is_too_long_is_cut_and_keeps_its_process() -> None:
    kept = json.loads(line_of("actor", line("actor/3", "x" * (2 * LONGEST_LINE), level="ERROR"), BEGAN))
    assert (kept["id"], kept["level"]) == ("actor/3", "ERROR")
    assert len(kept["msg"]) == LONGEST_LINE
    assert kept["kv"]["characters"] > 2 * LONGEST_LINE


def test_a_line_of_ours_is_kept_as_it_is() -> None:
    said = line("actor/3", "ümläut", exc="Traceback\n  x")
    assert line_of("actor", said, BEGAN) == said.encode() + b"\n"


def test_files_and_all_files_of_a_role_are_bounded_and_the_oldest_go(tmp_path: Path, clock: Clock) -> None:
    store = LogStore(tmp_path, BOOT, unix=clock, file_bytes=2000, role_bytes=6000)
    for number in range(100):
        store.add("actor", [line(f"actor/{number}", "x" * 100)])
        store.flush()
    store.add("learner", [line("learner/0", "stays")])
    store.flush()
    sizes = {file.name: (tmp_path / file.name).stat().st_size for file in files(tmp_path, "actor")}
    assert sum(sizes.values()) <= 6000
    assert max(sizes.values()) <= 2000
    parts = [file.part for file in files(tmp_path, "actor")]
    assert parts == list(range(parts[0], parts[-1] + 1))
    assert parts[0] > 0
    assert asked(tmp_path, role="learner") == ["stays"]


def test_lines_that_wait_for_a_slow_disk_are_bounded_and_the_oldest_are_lost_and_counted(tmp_path: Path) -> None:
    store = LogStore(tmp_path, BOOT, unix=Clock(), waiting_characters=1000)
    store.add("actor", [line("actor/1", f"{number:03d}") for number in range(100)])
    store.flush()
    kept = asked(tmp_path)
    assert kept[-1] == "099"
    assert len(kept) + store.lost == 100
    assert 0 < len(kept) < 10


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file grows beyond so many bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_full_disk_costs_lines_that_are_counted_and_leaves_no_half_line(tmp_path: Path, store: LogStore) -> None:
    store.add("actor", [line("actor/1", "before")])
    store.flush()
    (file,) = tmp_path.iterdir()
    with full_disk(file.stat().st_size + 50):
        store.add("actor", [line("actor/1", "lost"), line("actor/1", "lost too")])
        store.flush()
    assert store.lost == 2
    assert "2 lines are lost" in store.failure
    assert file.read_bytes().endswith(b"\n")
    store.add("actor", [line("actor/1", "after")])
    store.flush()
    assert store.failure == ""
    assert asked(tmp_path) == ["before", "after"]


def test_a_folder_that_is_gone_does_no_harm(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "absent", BOOT)
    store.start()
    store.add("actor", [line("actor/1", "x")])
    store.close()
    assert store.lost == 1
    assert "absent" in store.failure


def test_the_thread_writes_what_it_was_given_before_it_ends(tmp_path: Path) -> None:
    store = LogStore(tmp_path, BOOT, unix=Clock())
    store.start()
    store.add("juggler", ["of no role"])
    store.add("actor", [line("actor/1", "last words")])
    store.close()
    assert asked(tmp_path) == ["last words"]


# what is found


@pytest.fixture
def kept(tmp_path: Path, store: LogStore, clock: Clock) -> Path:
    """Two hours of a run; actor 3 has had three lives."""
    for hour in range(2):
        for minute in range(0, 60, 10):
            at = BEGAN + 3600 * hour + 60 * minute
            clock.now = at + 5
            level = "ERROR" if minute == 30 else "INFO"
            store.add("actor", [line("actor/3", f"a{hour}{minute:02d}", at=at, level=level, boot=f"life{hour}")])
            store.add("actor", [line("actor/30", f"o{hour}{minute:02d}", at=at + 1, level="DEBUG", boot="other")])
            store.add("learner", [line("learner/0", f"l{hour}{minute:02d}", at=at + 2)])
            store.flush()
    store.add("actor", [line("actor/?", "made its environment", at=clock.now, boot="life2")])
    store.add("actor", [line("actor/3", "third life", at=clock.now + 1, boot="life2")])
    store.flush()
    return tmp_path


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(BEGAN + seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def test_lines_of_all_roles_come_by_time(kept: Path) -> None:
    found = asked(kept, until=moment(600))
    assert found == ["a000", "o000", "l000", "a010"]


def test_one_process_is_found_and_not_those_whose_names_begin_alike(kept: Path) -> None:
    found = asked(kept, role="actor", index=3)
    assert len(found) == 14
    assert not any(text.startswith("o") for text in found)
    assert "made its environment" in found, "said before it knew its index"


def test_time_level_and_expression_are_filters(kept: Path) -> None:
    assert asked(kept, since=moment(3600), until=moment(3600 + 1), role="actor") == ["a100", "o100"]
    assert asked(kept, level="WARNING") == ["a030", "a130"]
    assert asked(kept, grep="a[01]5.") == ["a050", "a150"]
    assert asked(kept, grep='"level": "DEBUG".*o02') == ["o020"]
    assert asked(kept, role="modelpool") == []


def test_the_last_lines_are_those_after_every_other_filter(kept: Path) -> None:
    assert asked(kept, tail=2) == ["made its environment", "third life"]
    assert asked(kept, tail=3, level="INFO", role="actor", grep='"a1') == ["a130", "a140", "a150"]
    assert asked(kept, tail=0) == []
    assert asked(kept, tail=1, level="ERROR") == ["a130"]


def test_the_life_before_is_found_although_the_process_is_gone(kept: Path) -> None:
    assert asked(kept, role="actor", index=3, previous=True)[0] == "a100"
    assert "a000" not in asked(kept, role="actor", index=3, previous=True)
    assert asked(kept, role="learner", previous=True) == []


def test_an_answer_that_is_not_all_goes_on_with_its_page(tmp_path: Path, store: LogStore) -> None:
    count = MOST_LINES + 500
    for role in ("actor", "learner"):
        store.add(role, [line(f"{role}/0", f"{role} {number}", at=BEGAN + number) for number in range(count)])
        store.flush()
    seen: list[str] = []
    page = ""
    pages = 0
    while True:
        found = search(Query(str(tmp_path), page=page))
        seen += texts(found.lines)
        pages += 1
        assert len(found.lines) <= MOST_LINES
        if not (page := found.page):
            break
    assert seen == [f"{role} {number}" for number in range(count) for role in ("actor", "learner")]
    assert pages == 3


def test_lines_after_the_mark_are_left_for_the_next_answer(tmp_path: Path, clock: Clock) -> None:
    store = LogStore(tmp_path, BOOT, unix=clock, file_bytes=300)
    lines = Lines()
    lines.keep = store.add
    lines.add([line("actor/1", f"{number}") for number in range(4)], "actor")
    mark = store.flush(lines)
    lines.add([line("actor/1", "late"), line("actor/1", "later")], "actor")
    lines.add([line("learner/0", "late")], "learner")
    store.flush()
    assert mark.number == 4
    assert asked(tmp_path, boot=BOOT, sizes=dict(mark.sizes)) == ["0", "1", "2", "3"]
    assert texts(lines.since(mark.number)[0]) == ["late", "later", "late"]


# over the control API


class Api:
    """The queries of a manager that keeps lines."""

    def __init__(self, folder: Path, store: LogStore | None) -> None:
        self.lines = Lines()
        if store is not None:
            self.lines.keep = store.add
        self.queries = LogQueries(folder, self.lines, store, BOOT)

    def ask(self, **query: str) -> tuple[int, dict[str, Any]]:
        answer: Response = self.queries.answer(query)
        return answer.status, json.loads(answer.body)


@pytest.fixture
def api(tmp_path: Path, store: LogStore) -> Api:
    return Api(tmp_path, store)


def test_what_was_said_is_found_over_the_control_api_and_then_followed(api: Api) -> None:
    api.lines.add([line("actor/3", "one"), line("actor/4", "two", level="ERROR")], "actor")
    status, found = api.ask(process="actor", level="error")
    assert (status, texts(found["lines"]), found["next"], found["page"], found["lost"]) == (200, ["two"], 2, "", 0)
    api.lines.add([line("actor/3", "three"), line("learner/0", "four")], "actor")
    status, found = api.ask(after="2", process="actor/3")
    assert (status, texts(found["lines"]), found["next"]) == (200, ["three"], 4)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"process": "juggler"}, "ROLE/INDEX"),
        ({"process": "actor/x"}, "ROLE/INDEX"),
        ({"since": "yesterday"}, "RFC 3339"),
        ({"since": "2026-11-21T19:00:00"}, "time zone"),
        ({"level": "LOUD"}, "one of DEBUG"),
        ({"tail": "-1"}, "a number"),
        ({"grep": "("}, "not a regular expression"),
        ({"page": "actor=../../etc/passwd:x"}, "that of an answer"),
        ({"after": "1", "grep": "x"}, "filter them yourself"),
        ({"tial": "1"}, "unknown"),
    ],
)
def test_a_query_that_cannot_be_answered_is_refused_in_words(api: Api, query: dict[str, str], words: str) -> None:
    status, answer = api.ask(**query)
    assert status == 400
    assert words in answer["error"]["message"]


def test_moments_of_any_time_zone_are_understood(api: Api) -> None:
    api.lines.add([line("actor/3", "at seven"), line("actor/3", "later", at=BEGAN + 7)], "actor")
    assert texts(api.ask(until="2026-11-21T20:00:01+01:00")[1]["lines"]) == ["at seven"]
    assert texts(api.ask(until="2026-11-21T20:00:01 01:00")[1]["lines"]) == ["at seven"], "a + that was not encoded"
    assert texts(api.ask(since="2026-11-21T19:00:02Z")[1]["lines"]) == ["later"]


def test_an_expression_that_never_comes_to_an_end_costs_a_search_and_not_the_manager(
    tmp_path: Path, store: LogStore
) -> None:
    store.add("actor", [line("actor/3", "a" * 4000)])
    store.flush()
    code, out, said = in_a_process(Query(str(tmp_path), grep="(a+)+$b", cpu_s=1))
    assert (code, out) == (1, b"")
    assert "simpler expression" in said


def test_only_a_few_searches_go_on_at_once(tmp_path: Path, store: LogStore) -> None:
    queries: LogQueries

    def nested(query: Query) -> tuple[int, bytes, str]:
        answers.append(queries.answer({}).status)
        return 0, b'{"lines":[],"page":""}', ""

    answers: list[int] = []
    queries = LogQueries(tmp_path, Lines(), store, BOOT, search=nested, memory_mib=4096)
    assert queries.answer({}).status == 200
    assert answers == [503, 200], "the third one at once is refused"
    answers.clear()
    queries = LogQueries(tmp_path, Lines(), store, BOOT, search=nested, memory_mib=512)
    assert queries.answer({}).status == 200
    assert answers == [503], "of a small pod the second one"


def test_a_search_takes_half_of_the_memory_that_is_left_at_most_and_reads_no_file_as_a_whole(
    tmp_path: Path, store: LogStore
) -> None:
    assert [address_space(mib << 20) >> 20 for mib in (300, 2048, 100_000)] == [150, 1024, 1024]
    store.add("actor", [line("actor/3", f"{number:06d}" + 2000 * "x") for number in range(2000)])
    store.flush()
    tracemalloc.start()
    try:
        assert asked(tmp_path, grep="001999x")[0].startswith("001999")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_where_nothing_is_kept_the_newest_lines_are_all_there_is(tmp_path: Path) -> None:
    api = Api(tmp_path, None)
    api.lines.add([line("actor/3", "one"), line("actor/4", "two")], "actor")
    assert texts(api.ask()[1]["lines"]) == ["one", "two"]
    assert api.ask(tail="1")[0] == 400
