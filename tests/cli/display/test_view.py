"""The live view, as a terminal of 80 columns shows it."""

import io

from rich.console import Console

from rlctl.cli.context import World
from rlctl.cli.display.view import Screen, tree
from rlctl.cli.run.snapshot import take
from tests.cli.conftest import STATUS, Rlctl, check_golden
from tests.cli.test_surface import FAILURE


def drawn(rlctl: Rlctl, *, width: int = 80, height: int = 24) -> str:
    snapshot = take(World(clock=lambda: 0.0, now=rlctl.now), rlctl.backend, "pole")
    assert snapshot is not None
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(tree(snapshot, height=height))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_tree_shows_roles_speed_return_lag_and_verdict(rlctl: Rlctl) -> None:
    rlctl.up()
    shown = drawn(rlctl)
    check_golden("tree.txt", shown, folder=rlctl.folder)


def test_the_tree_fits_80_by_24_when_much_is_wrong(rlctl: Rlctl) -> None:
    rlctl.up("--set", "roles.actor.replicas=40")
    rlctl.report(problems=[{"text": f"problem {number}", "next": "rlctl status"} for number in range(9)])
    for index in range(20):
        rlctl.backend.set_process("pole", "actor", index, state="backoff", reason="exited 1: " + "words " * 30)
    shown = drawn(rlctl)
    assert len(shown.splitlines()) <= 24
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "actor/0 backoff" in shown
    assert "verdict" in shown


def test_more_room_shows_more_of_what_is_wrong(rlctl: Rlctl) -> None:
    rlctl.up("--set", "roles.actor.replicas=40")
    for index in range(20):
        rlctl.backend.set_process("pole", "actor", index, state="backoff")
    assert drawn(rlctl, height=50).count("backoff") > drawn(rlctl).count("backoff")


def test_the_tree_leaves_out_steps_that_are_older_than_the_updates(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.report(totals={**STATUS["totals"], "env_steps": 64, "agent_steps": 64})
    assert "so far      118 updates" in drawn(rlctl)


def test_the_tree_draws_a_run_without_any_report(rlctl: Rlctl) -> None:
    rlctl("up", rlctl.spec, "-d")
    assert "not evaluated yet" in drawn(rlctl)


def test_words_of_a_process_cannot_act_on_the_terminal(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.set_process("pole", "actor", 0, state="exited", reason="[bold]\x1b[2J\x07")
    shown = drawn(rlctl)
    assert "[bold]" in shown
    assert "\x1b[2J" not in shown
    assert "\x07" not in shown


def test_up_on_a_terminal_draws_in_place_and_ends_with_the_table(rlctl: Rlctl) -> None:
    rlctl.environ = {"TERM": "xterm-256color"}
    rlctl.at(1, rlctl.report)
    rlctl.at(4, lambda: rlctl.backend.finish("pole", "enough"))
    result = rlctl("up", rlctl.spec, terminal=True, width=80)
    assert result.code == 0
    assert "├──" in result.err
    assert "\x1b[?25h" in result.err, "the cursor is shown again"
    assert "pole finished: enough" in result.out


def test_no_color_and_dumb_terminals_are_respected(rlctl: Rlctl) -> None:
    rlctl.at(4, lambda: rlctl.backend.finish("pole", "enough"))
    rlctl.environ = {"TERM": "dumb"}
    result = rlctl("up", rlctl.spec, terminal=True)
    assert "\x1b" not in result.err + result.out
    rlctl.environ = {"TERM": "xterm", "NO_COLOR": "1"}
    assert "\x1b" not in rlctl("status", terminal=True).out
    rlctl.environ = {"TERM": "xterm"}
    assert rlctl("status", terminal=True).out.startswith("\x1b[1mfinished")


def test_a_failure_on_a_terminal_leaves_the_cause_and_not_the_tree(rlctl: Rlctl) -> None:
    rlctl.environ = {"TERM": "xterm-256color"}
    rlctl.at(4, lambda: rlctl.backend.fail("pole", FAILURE))
    result = rlctl("up", rlctl.spec, terminal=True, width=80)
    assert result.code == 7
    assert result.err.rstrip().endswith("next: rlctl logs actor/1 --run pole")


def test_status_watch_on_a_terminal_ends_with_the_whole_answer(rlctl: Rlctl) -> None:
    rlctl.environ = {"TERM": "xterm-256color"}
    rlctl.up()
    rlctl.at(4, lambda: rlctl.backend.finish("pole", "enough"))
    result = rlctl("status", "-w", terminal=True, width=80)
    assert result.code == 0
    assert "finished: enough" in result.out
    assert STATUS["verdict"]["text"] in result.out


def test_a_terminal_that_is_not_utf_8_gets_question_marks() -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    out = io.BytesIO()
    stream = Terminal(out, "ascii", write_through=True)
    with Screen(World(stdout=stream, stderr=stream, environ={"TERM": "xterm"}, width=60), stream) as screen:
        assert screen.live
        screen.show(["12 \u00b1 3 \u2581\u2588"])
    assert b"12 ? 3 ??" in out.getvalue()
