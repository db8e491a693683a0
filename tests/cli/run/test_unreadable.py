"""A run with a record that cannot be read: its logs are shown and its processes stopped all the same."""

from rlctl.errors import BackendUnreachable
from tests.cli.clusters import Clusters
from tests.cli.conftest import Rlctl

WARNING = "warning: the record of run pole is torn\n"


def test_logs_answer_without_the_record_and_warn(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.log("actor/0", "said")
    rlctl.backend.tear("pole")
    for arguments in (("--run", "pole"), ("--run", "pole", "actor"), ()):
        result = rlctl("logs", *arguments)
        assert result.code == 0
        assert "said" in result.out
        assert result.err.endswith(WARNING)


def test_down_stops_it_warns_and_says_that_the_file_stays(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.tear("pole")
    result = rlctl("down", "pole", "-o", "json")
    assert result.code == 0
    assert result.err.startswith(WARNING + "  the file is kept as it is")
    assert "go on         mend it, or move it away" in result.err
    assert result.json["kept"].startswith("/data/runs/pole-")
    assert rlctl.backend.processes("pole") == []


def test_down_without_a_name_means_it_when_it_is_the_only_run(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.tear("pole")
    assert rlctl("down").code == 0
    assert rlctl.backend.processes("pole") == []


def test_of_several_that_cannot_be_read_one_has_to_be_named(rlctl: Rlctl) -> None:
    for run in ("pole", "other"):
        rlctl.up(run=run)
        rlctl.backend.tear(run)
    for verb in ("down", "logs", "status"):
        assert rlctl(verb).code == 2
    assert rlctl.backend.processes("pole")


def test_down_with_volumes_asks_and_removes_it(rlctl: Rlctl) -> None:
    rlctl.up()
    rlctl.backend.tear("pole")
    rlctl.backend.freeze("pole", BackendUnreachable("supervisord (pid 4711) does not answer within 3 s"))
    result = rlctl("down", "pole", "--volumes")
    assert result.code == 9
    assert "all processes are stopped" in result.err
    assert "/data/runs/pole-" in result.err
    assert rlctl("down", "pole", "--volumes", terminal=True, answer="pole\n").code == 0
    assert rlctl.backend.runs() == []


def test_up_of_it_is_refused_with_what_to_do(rlctl: Rlctl) -> None:
    rlctl.up()
    writes = rlctl.backend.writes
    rlctl.backend.tear("pole")
    result = rlctl("up", rlctl.spec, "-d", "-o", "json")
    assert result.code == 4
    assert result.json["error"]["reason"] == "unreadable"
    assert "next: mend it, or move it away" in result.err
    assert rlctl.backend.writes == writes


def test_a_run_of_a_cluster_whose_record_is_torn_can_be_stopped_too(rlctl: Rlctl) -> None:
    clusters = Clusters(rlctl)
    clusters.up()
    clusters.here.tear("pole")
    assert rlctl("status", "pole", "-o", "json").json["error"]["reason"] == "unreadable"
    result = rlctl("down", "pole")
    assert (result.code, WARNING in result.err, "--forget" in result.err) == (0, True, False)
