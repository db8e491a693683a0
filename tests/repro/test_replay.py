"""Episodes that are recorded and played again: every kind of environment, what differs, and what is not kept."""

from __future__ import annotations

import bdb
import io
from typing import Any

import msgspec
import pytest

from rlctl_agents.debugging.terminal import DebugOutput
from rlctl_agents.repro import playing, record, recording
from rlctl_agents.repro.playing import Replayed, play
from rlctl_agents.repro.provenance import differences
from rlctl_agents.repro.record import Chunk, Header, Provenance, RecordError, steps_of, unpack
from tests.repro.worlds import HERE, Lamps, crash, drive, file_of, recorder

LAMPS = {"id": f"{HERE}:Lamps"}
STICKY = {"name": "StickyAction", "kwargs": {"repeat_action_probability": 0.5}}


def again(header: Header, chunks: list[Chunk]) -> tuple[Replayed, str]:
    """Outcome by way of its file, and what is said meanwhile."""
    said = io.StringIO()

    class Quiet(DebugOutput):
        def note(self, text: str) -> None:
            print(text, file=said)

    outcome = play(*unpack(file_of(header, chunks)), Quiet(io.StringIO(), as_json=False, quiet=True))
    return outcome, said.getvalue()


@pytest.mark.parametrize(
    "section",
    [
        {"id": "tests.envs.tiny:Reach"},
        {"id": "tests.envs.tiny:Mixed"},
        {"id": "tests.envs.tiny:Clock"},
        {
            "id": "tests.envs.tiny:Memory",
            "frame_stack": 3,
            "wrappers": [STICKY],
        },
        {"id": "tests.envs.tiny:Duel"},
        {"id": "tests.envs.tiny:Turns"},
        {"id": "tests.envs.test_vectors:Same"},
        {"id": "tests.envs.test_vectors:Told"},
        {"id": "tests.envs.test_vectors:Masked"},
        {"id": "CartPole-v1"},
        {"id": "CartPole-v1", "max_episode_steps": 7, "action_repeat": 2},
    ],
    ids=lambda section: "-".join(map(str, section.values()))[:60],
)
def test_an_episode_of_an_evaluation_goes_as_it_went(section: dict[str, Any]) -> None:
    env = recorder(section, 3, training=False)
    drive(env, 300)
    header, chunks = env.ended("worst", 1, 2)
    outcome, _ = again(header, chunks)
    assert (outcome.diverged, outcome.raised, outcome.at) == (None, None, header.actions)
    assert header.begin < header.answers == header.actions < 300
    assert outcome.returned is not None


def test_a_game_of_atari_is_played_again_alone() -> None:
    section = {"id": "ALE/Breakout-v5", "preset": "atari", "max_episode_steps": 30, "episodic_life": False}
    env = recorder(section, 3, training=False)
    drive(env, 70)
    header, chunks = env.ended("best", 2, 1)
    assert header.alone
    outcome, _ = again(header, chunks)
    assert (outcome.diverged, outcome.at) == (None, header.actions)


def test_a_failure_comes_again_at_its_step_without_the_episodes_before() -> None:
    header, chunks = crash(LAMPS)
    assert header.alone
    assert header.begin > 100, "it takes some episodes"
    assert [start.answer for start in header.starts] == [0, header.begin]
    outcome, said = again(header, chunks)
    assert (outcome.diverged, outcome.at, said) == (None, header.actions, "")
    assert str(outcome.raised) == f"step raised AssertionError: too bright ({HERE}:Lamps, seed 0, step {header.steps})"
    assert header.error.startswith("step raised AssertionError: too bright (")
    assert "assert self.fixed or seen.sum() < self.bright" in header.traceback


def test_an_environment_with_a_generator_of_its_own_is_played_from_its_reset() -> None:
    header, chunks = crash({**LAMPS, "kwargs": {"own": True}})
    outcome, said = again(header, chunks)
    assert said.startswith(f"diverged at step 0 of {header.steps}: the observation differs; an environment that keeps")
    assert (outcome.diverged, outcome.at) == (None, header.actions)
    assert "too bright" in str(outcome.raised)
    assert f"step {header.actions})" in str(outcome.raised)


def test_environments_that_are_stepped_together_fail_together_after_all_their_steps() -> None:
    header, chunks = crash({"id": f"{HERE}:Together"}, 2)
    assert (header.alone, header.actions, len(chunks)) == (False, 700, 3)
    outcome, _ = again(header, chunks)
    assert (outcome.diverged, outcome.at) == (None, 700)
    assert "worn out" in str(outcome.raised)


def test_a_reset_that_fails_is_an_episode_without_steps() -> None:
    header, chunks = crash({**LAMPS, "kwargs": {"bright": "much"}})
    assert header.steps == 1
    header, chunks = crash({"id": f"{HERE}:Together", "kwargs": {"last": 1}}, 2)
    assert (header.actions, header.answers) == (1, 0)
    assert again(header, chunks)[0].raised is not None


@pytest.mark.parametrize("count", [1, 3])
def test_the_first_step_that_differs_is_named_and_the_failure_awaited_all_the_same(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = {**LAMPS, "kwargs": {"length": 50}}
    header, chunks = crash(section, count)
    assert header.steps > 4
    odd = header.begin + 3

    class Other(Lamps):
        def step(self, action: Any) -> Any:
            seen, *rest = super().step(action)
            return seen * (0.5 if self.now >= 3 else 1), *rest

    monkeypatch.setattr("tests.repro.worlds.Lamps", Other)
    alone = msgspec.structs.replace(header, starts=header.starts[-1:])
    outcome, _ = again(alone, chunks)
    assert (outcome.diverged, outcome.what, outcome.at) == (odd, "the observation differs", header.actions)
    assert outcome.raised is not None

    monkeypatch.setattr("tests.repro.worlds.Lamps.fixed", True)
    outcome, _ = again(alone, chunks)
    assert (outcome.diverged, outcome.raised) == (odd, None)


def test_another_reward_or_end_is_told_apart_from_another_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    env = recorder({"id": "tests.envs.tiny:Clock"}, 2, training=False)
    drive(env, 20)
    header, chunks = env.ended("best", 0, 1)
    longer = msgspec.structs.replace(header, env={**header.env, "kwargs": {"length": 5}})
    outcome, _ = again(longer, chunks)
    assert (outcome.diverged, outcome.what) == (4, "reward or end differs")


def test_only_so_much_is_kept_and_a_single_environment_needs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "KEPT_BYTES", 20_000)
    header, chunks = crash({**LAMPS, "kwargs": {"bright": 2.84}})
    assert [start.answer for start in header.starts] == [header.begin]
    assert sum(len(one.data) + len(one.digests) for one in chunks) < 30_000
    outcome, _ = again(header, chunks)
    assert (outcome.diverged, outcome.at) == (None, header.actions)
    assert outcome.raised is not None

    header, chunks = crash({"id": f"{HERE}:Together", "kwargs": {"last": 5000}}, 200)
    assert (header.starts, chunks) == ([], [])
    assert header.why_not.startswith("of the ")


def test_a_life_is_no_episode_to_play_again() -> None:
    env = recorder({"id": "tests.envs.test_wrapping:Film", "episodic_life": True}, 2, training=True)
    drive(env, 30)
    header, _ = env._cut("crash", 0, env._count[0], env._first[0], env._answers, env._answers + 1)
    assert header.begin % 12 == 0
    assert header.begin > 0


def test_every_environment_of_a_vector_has_actions_of_its_own() -> None:
    env = recorder({"id": "tests.envs.tiny:Clock", "kwargs": {"length": 3}}, 3, training=False)
    drive(env, 400)
    alone = {index: env.ended("best", index, 3) for index in range(3)}
    columns = {
        index: [step.action["action"].tolist() for step in steps_of(header, chunks, 0)]
        for index, (header, chunks) in alone.items()
    }
    assert len({str(column) for column in columns.values()}) == 3


def damaged(data: bytes) -> list[tuple[bytes, str]]:
    line, _, body = data.partition(b"\n")
    return [
        (b"", "it is damaged: "),
        (data[:-1], "its sha256 is not the one"),
        (line + b"\n" + body[:9] + bytes([body[9] ^ 1]) + body[10:], "its sha256 is not the one"),
        (line.replace(b'"format":1', b'"format":7') + b"\n" + body, "it is in format 7, this release reads format 1"),
        (line.replace(b'"envs":3', b'"envs":4') + b"\n" + body, "seeds and environments do not fit"),
        (line.replace(b'"kind":"crash"', b'"kind":"bad"') + b"\n" + body, "it is damaged: "),
        (b"[1]\n" + body, "it is damaged: "),
        (b"\xff\n" + body, "it is damaged: "),
    ]


def test_a_damaged_record_is_refused_with_what_is_wrong() -> None:
    header, chunks = crash(LAMPS)
    for data, said in damaged(file_of(header, chunks)):
        with pytest.raises(RecordError, match=said):
            unpack(data)
    lacking = msgspec.structs.replace(header, actions=header.actions + 5000)
    with pytest.raises(RecordError, match=r"action \d+ is missing"):
        unpack(file_of(lacking, chunks))
    for fields in ({"data": chunks[0].data[:5]}, {"steps": 2**40, "rows": 2**40}, {"steps": 2**40}):
        with pytest.raises(RecordError, match="actions 1 and on cannot be read"):
            again(header, [msgspec.structs.replace(chunks[0], **fields)])
    cut = msgspec.structs.replace(chunks[0], digests=chunks[0].digests[:-1])
    with pytest.raises(RecordError, match="digests that are cut short"):
        unpack(file_of(header, [cut, *chunks[1:]]))
    with pytest.raises(RecordError, match="seeds and environments do not fit"):
        unpack(file_of(msgspec.structs.replace(header, index=-1), chunks))
    other = [msgspec.structs.replace(header.starts[1], generator='{"bit_generator": "PCG64", "state": 3}')]
    with pytest.raises(RecordError, match="its generator cannot be restored"):
        again(msgspec.structs.replace(header, starts=other), chunks)


def test_a_record_cannot_unpack_to_more_than_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    header, chunks = crash(LAMPS)
    monkeypatch.setattr(record, "_LARGEST_CHUNK_BYTES", 100)
    with pytest.raises(RecordError, match="cannot be read"):
        again(header, chunks)


def test_code_comes_first_among_what_differs() -> None:
    packages = {"numpy": "1.0", "gymnasium": "1.0"}
    then = Provenance({"lamps": "1" * 16, "same": "2" * 16}, packages, "", "x86_64, Linux, A")
    now = Provenance({"lamps": "3" * 16, "same": "2" * 16}, packages | {"numpy": "2.0"}, "", "arm64, Darwin")
    assert differences(then, now) == [
        "module lamps has changed since",
        "numpy was 1.0, here it is 2.0",
        "the machine was x86_64, Linux, A, here it is arm64, Darwin",
    ]
    assert differences(then, then) == []


def program(tmp_path: Any, header: Header, chunks: list[Chunk], *options: str) -> int:
    (tmp_path / "it").write_bytes(file_of(header, chunks))
    return playing.main([str(tmp_path / "it"), "--name=actor/3@17 of run demo", *options])


def test_the_program_tells_a_failure_with_its_traceback_and_ends_with_7(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    header, chunks = crash(LAMPS)
    assert program(tmp_path, header, chunks) == 7
    out, chat = capsys.readouterr()
    assert chat == (
        f"actor/3@17 of run demo: episode {header.episode} of environment 0, {header.steps} steps of {HERE}:Lamps, "
        "seed 0; it failed\n"
    )
    assert 'assert self.fixed or seen.sum() < self.bright, "too bright"' in out
    last = out.splitlines()[-1]
    assert last.startswith(f"actor/3@17 of run demo failed at step {header.steps} of {header.steps}, reward ")
    assert ", as recorded: step raised AssertionError: too bright (" in last


def test_the_program_ends_with_0_where_it_does_not_fail_any_more_and_1_where_it_diverged(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    header, chunks = crash(LAMPS)
    monkeypatch.setattr(Lamps, "fixed", True)
    assert program(tmp_path, header, chunks, "--quiet") == 0
    out, chat = capsys.readouterr()
    assert out.startswith(
        f"actor/3@17 of run demo did not fail at step {header.steps} of {header.steps}, as it had with"
    )
    assert chat == ""

    monkeypatch.setattr(Lamps, "shift", 0.01)
    assert program(tmp_path, header, chunks, "--quiet") == 1
    out = capsys.readouterr().out
    assert out.startswith(
        f"actor/3@17 of run demo diverged at step 0 of the {header.begin} before the episode: the obs"
    )
    assert "(code and packages are those of then, so the environment draws from something" in out

    other = msgspec.structs.replace(header, provenance=Provenance({"tests.repro.worlds": "0" * 16}, {"numpy": "0.1"}))
    assert program(tmp_path, other, chunks, "--quiet") == 1
    assert "differs (module tests.repro.worlds has changed since; numpy was 0.1, here it is" in capsys.readouterr().out


def test_the_program_refuses_what_cannot_be_played_in_a_sentence(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    header, chunks = crash(LAMPS)
    gone = msgspec.structs.replace(header, env={"id": "no_such_module:Env"})
    assert program(tmp_path, gone, chunks, "--quiet") == 3
    assert "the environment cannot be made here: no_such_module" in capsys.readouterr().out
    other = msgspec.structs.replace(header, env={"id": "CartPole-v1"})
    assert program(tmp_path, other, chunks) == 3
    assert "it has other actions or seats than when the episode was recorded" in capsys.readouterr().out
    assert playing.main([str(tmp_path / "none"), "--quiet"]) == 1
    assert "it cannot be read: No such file or directory" in capsys.readouterr().out
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(playing.LARGEST_BYTES + 1)
    assert playing.main([str(tmp_path / "huge"), "--quiet"]) == 1
    assert "no episode is larger than 16 MiB" in capsys.readouterr().out
    lost = msgspec.structs.replace(header, starts=[], why_not="the first are not kept")
    assert program(tmp_path, lost, []) == 1
    assert "it cannot be played again: the first are not kept" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["__init__", "reset", "step", "close"])
def test_quit_of_the_debugger_ends_the_program_with_130_and_without_a_traceback(
    method: str, tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def quits(*_: Any, **__: Any) -> Any:
        raise bdb.BdbQuit

    header, chunks = crash(LAMPS)
    monkeypatch.setattr(Lamps, method, quits)
    assert program(tmp_path, header, chunks) == 130
    out, chat = capsys.readouterr()
    assert out == ""
    assert chat.endswith("; it failed\nended from the debugger\n")
