"""Files of a run that is taken down: the pod that hands them out, and that nothing of it stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import kubernetes_validate
import pytest
import yaml

from rlctl.backends.kubernetes.access import reader
from rlctl.backends.kubernetes.api.interface import Key, Object
from rlctl.backends.kubernetes.run_state.desired_state import of_revision
from rlctl.errors import BackendUnreachable, Conflict, RlctlError, TimedOut
from rlctl.spec.layout import Layout
from rlctl_agents.manager.web.stored_files import StoredFiles
from tests.backends.kubernetes.fakes.lab import IMAGES, UID, Lab, spec_of
from tests.backends.kubernetes.fakes.selectors import forbidden

GOLDEN = Path(__file__).parents[1] / "fakes" / "fixtures" / "reader.yaml"


@pytest.fixture
def layout(lab: Lab, tmp_path: Path) -> Layout:
    """The run's folder, which whatever listens in a pod reads."""
    layout = Layout(tmp_path / "volume")
    layout.make()
    (layout.models / "best.json").write_bytes(b"0123456789")
    files = StoredFiles(layout)

    def answer(method: str, path: str, body: Any) -> tuple[int, Any]:
        if not path.startswith("/files"):
            return 200, {"phase": "running"}
        found = files.answer(dict(parse_qsl(urlsplit(path).query)))
        return found.status, json.loads(found.body)

    lab.api.manager = answer
    return layout


@pytest.fixture
def down(lab: Lab, layout: Layout) -> Lab:
    """A run that is taken down."""
    lab.up()
    lab.settle()
    lab.down()
    lab.api.new_command()
    return lab


def readers(lab: Lab) -> list[Object]:
    return [thing for key, thing in lab.api.objects.items() if key.name.startswith("pong-reader-")]


def names(lab: Lab) -> list[str]:
    return sorted(thing["metadata"]["name"] for thing in readers(lab))


def read(lab: Lab) -> None:
    with lab.backend().stored_files("pong"):
        pass


def kill(lab: Lab) -> None:
    """Read files of the run by a command that never comes to its end."""
    before = set(lab.api.objects)
    with lab.backend().stored_files("pong"):
        made = {key: thing for key, thing in lab.api.objects.items() if key not in before}
    lab.api.objects |= made


def told(lab: Lab, status: Object) -> Callable[[], None]:
    """Report this of every reader's pod."""

    def tick() -> None:
        for key in [key for key in lab.api.objects if key.kind == "Pod"]:
            lab.api.report(key, status)

    return tick


def waiting(reason: str, message: str) -> Object:
    container = {"name": "reader", "ready": False, "state": {"waiting": {"reason": reason, "message": message}}}
    return {"phase": "Pending", "containerStatuses": [container]}


@pytest.mark.parametrize("phase", ["running", "finished", "failed"])
def test_files_of_a_run_that_is_taken_down_come_through_a_pod_however_it_ended(
    lab: Lab, layout: Layout, phase: str
) -> None:
    answer = lab.api.manager
    assert answer is not None
    lab.api.manager = lambda method, path, body: (
        (200, {"phase": phase}) if path == "/status" else answer(method, path, body)
    )
    lab.up()
    lab.settle()
    with lab.backend().stored_files("pong") as files:
        assert files.sizes("models") == {"best.json": 10}
        assert not readers(lab), "the manager is there"
    lab.down()
    before = lab.there()
    with lab.backend().stored_files("pong") as files:
        assert [one["kind"] for one in readers(lab)] == ["NetworkPolicy", "Pod"]
        assert len(set(names(lab))) == 1
        assert files.sizes("models") == {"best.json": 10}
        assert files.read("models", "best.json", 4, 100) == b"456789"
    assert not readers(lab)
    assert lab.there() == before
    assert any("run pong is taken down: pod pong-reader-" in note for note in lab.notes)


def test_the_pod_and_its_policy_are_these(down: Lab) -> None:
    wanted = of_revision(down.of("ConfigMap", "pong-revision-1"), "pong", UID)
    sent = reader.pod_and_policy(wanted, "pong-reader-0a1b2c3d")
    assert sent is not None
    for thing in sent:
        kubernetes_validate.validate(thing, "1.30", strict=True)
    text = yaml.safe_dump_all(sent, sort_keys=False)
    assert text == GOLDEN.read_text(), f"if it is as meant:\n{text}"
    with down.backend().stored_files("pong"):
        assert len({name.replace("pong-reader-", "") for name in names(down)}.pop()) == 8
    written = [write.partition(" pong-reader-")[0] for write in down.api.writes]
    assert written == ["POST NetworkPolicy", "POST Pod", "DELETE Pod", "DELETE NetworkPolicy"], "it is never open"


def test_it_starts_where_the_manager_did_with_what_patches_say(lab: Lab, layout: Layout) -> None:
    def patch(thing: Object) -> None:
        if thing["kind"] != "StatefulSet" or thing["metadata"]["name"] != "pong-manager":
            return
        spec = thing["spec"]["template"]["spec"]
        spec["nodeSelector"] = {"pool": "core"}
        spec["tolerations"] = [{"key": "core", "operator": "Exists"}]
        spec["imagePullSecrets"] = [{"name": "registry"}]
        spec["containers"][0]["resources"]["limits"]["cpu"] = "2"
        for mount in spec["containers"][0]["volumeMounts"]:
            if mount["mountPath"] == "/rlctl":
                mount["subPath"] = "team"

    lab.change = patch
    lab.up(storage={"claim": "shared"})
    lab.settle()
    lab.down()
    with lab.backend().stored_files("pong"):
        _, pod = readers(lab)
    spec = pod["spec"]
    assert spec["nodeSelector"] == {"pool": "core"}
    assert spec["tolerations"] == [{"key": "core", "operator": "Exists"}]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["volumes"] == [{"name": "volume", "persistentVolumeClaim": {"claimName": "shared"}}]
    [container] = spec["containers"]
    assert container["image"] == IMAGES["core"]
    assert container["volumeMounts"] == [{"name": "volume", "mountPath": "/rlctl", "subPath": "team", "readOnly": True}]
    assert container["resources"]["limits"]["cpu"] == "2", "a quota of the namespace asks for it"
    assert f"--run-dir=/rlctl/runs/pong-{UID[:8]}" in container["args"]


@pytest.mark.parametrize("error", [RlctlError("damaged"), KeyboardInterrupt(), SystemExit(143)])
def test_it_goes_with_its_command_however_that_ends(down: Lab, error: BaseException) -> None:
    before = down.there()
    seen = []

    def command() -> None:
        with down.backend().stored_files("pong"):
            seen.extend(readers(down))
            raise error

    with pytest.raises(type(error)):
        command()
    assert len(seen) == 2
    assert not readers(down)
    assert down.there() == before


def test_an_interrupt_while_it_is_waited_for_leaves_nothing(down: Lab) -> None:
    down.api.stuck.add("reader")

    def interrupt() -> None:
        if readers(down) and down.api.seconds > 20:
            raise KeyboardInterrupt

    down.api.on_tick = interrupt
    with pytest.raises(KeyboardInterrupt):
        read(down)
    assert not readers(down)


def test_two_commands_at_once_have_each_their_own(down: Lab) -> None:
    with down.backend().stored_files("pong") as one:
        with down.backend().stored_files("pong") as other:
            assert len(set(names(down))) == 2
            assert other.sizes("models")
        assert len(set(names(down))) == 1
        assert one.sizes("models") == {"best.json": 10}
    assert not readers(down)


def test_what_a_killed_command_left_goes_with_the_next_one_once_its_deadline_has_passed(down: Lab) -> None:
    kill(down)
    left = names(down)
    assert len(left) == 2
    with down.backend().stored_files("pong"):
        assert set(left) <= set(names(down)), "it may be of a command that runs"
    down.settle(reader.DEADLINE_S + 5)
    with down.backend().stored_files("pong"):
        assert not set(left) & set(names(down))
    assert not readers(down)


def test_a_pod_that_no_node_ever_took_goes_as_well_and_so_does_a_policy_alone(down: Lab) -> None:
    kill(down)
    down.api.stuck.add("reader")
    down.api.remove(next(key for key in down.api.objects if key.kind == "Pod"))
    down.settle(2 * reader.DEADLINE_S + 5)
    down.api.stuck.clear()
    left = names(down)
    with down.backend().stored_files("pong"):
        assert not set(left) & set(names(down))


def test_what_a_killed_command_left_goes_with_the_volumes(down: Lab) -> None:
    kill(down)
    removed = [one.object for one in down.down(volumes=True)]
    assert down.there() == set()
    assert not readers(down)
    kinds = [name.split()[0] for name in removed]
    assert kinds.index("Pod") < kinds.index("PersistentVolumeClaim"), "it would keep the claim"


def test_an_object_of_somebody_else_stays(down: Lab) -> None:
    kill(down)
    for key in [key for key in down.api.objects if key.name.startswith("pong-reader-")]:
        down.api.edit(key, "x", lambda thing: thing["metadata"]["annotations"].clear())
    left = names(down)
    down.settle(reader.DEADLINE_S + 5)
    with down.backend().stored_files("pong"):
        assert set(left) <= set(names(down))


@pytest.mark.parametrize("kind", ["Pod", "NetworkPolicy"])
def test_without_the_right_to_make_it_the_right_is_named(down: Lab, kind: str) -> None:
    down.api.refuse = lambda method, key: forbidden(key, "create") if (method, key.kind) == ("POST", kind) else None
    with pytest.raises(
        BackendUnreachable, match=rf"may not create {kind} pong-reader-\w+ in namespace rl as "
    ) as error:
        read(down)
    assert error.value.exit_code == 4
    assert "rlctl render --admin" in error.value.hint
    assert not readers(down)


def test_what_could_not_be_made_is_not_said_to_stay(down: Lab) -> None:
    down.api.refuse = lambda method, key: forbidden(key, method.lower()) if key.kind == "Pod" else None
    with pytest.raises(BackendUnreachable), down.backend().stored_files("pong"):
        pass
    assert not [text for text in down.notes if "stays" in text]


def test_without_the_right_to_reach_it_that_is_told_at_once(down: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(pod: str, port: int) -> Any:
        raise forbidden(Key("Pod", pod), "create")

    monkeypatch.setattr(down.api, "forward", forward)
    began = down.api.seconds
    with pytest.raises(BackendUnreachable, match=r"pod pong-reader-\w+, .* cannot be reached: .*forbidden") as error:
        read(down)
    assert "pods/portforward" in error.value.hint
    assert down.api.seconds - began < 10
    assert not readers(down)


def test_a_pod_that_may_not_be_removed_is_no_failure_and_told(down: Lab) -> None:
    down.api.refuse = lambda method, key: forbidden(key, "delete") if method == "DELETE" else None
    with down.backend().stored_files("pong") as files:
        assert files.sizes("models")
    assert any("stays until its deadline, 60 min from its start" in note for note in down.notes)


def test_an_image_that_is_not_there_is_told_at_once(down: Lab) -> None:
    image = IMAGES["core"]
    down.api.stuck.add("reader")
    down.api.on_tick = told(
        down, waiting("ErrImagePull", f'failed to pull and unpack image "{image}": {image}: not found')
    )
    began = down.api.seconds
    with pytest.raises(BackendUnreachable, match=r"pod pong-reader-\w+, .* does not run: image .* does not exist"):
        read(down)
    assert down.api.seconds - began < 20
    assert not readers(down)


def test_a_pod_that_no_node_takes_is_waited_for_with_the_reason(down: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "0/3 nodes are available: 3 Insufficient cpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    down.api.stuck.add("reader")
    down.api.on_tick = told(down, {"phase": "Pending", "conditions": [condition]})
    monkeypatch.setattr(reader, "PATIENCE_S", 30.0)
    with pytest.raises(TimedOut, match=r"has not answered for 30 s: .*cpu") as error:
        read(down)
    assert error.value.hint.startswith(
        "kubectl --context fake -n rl get events --field-selector involvedObject.name=pong-reader-"
    )
    assert any("cpu" in line and "since 1" in line for line in down.waited)
    assert not readers(down)


def test_a_program_that_ends_at_once_is_told_with_its_last_words(down: Lab) -> None:
    line = {"ts": "2026-01-02T03:04:05.1Z", "level": "ERROR", "run": "pong", "role": "files", "id": "files/0"}
    words = json.dumps({**line, "boot": "c0ffee12", "msg": "there is no /rlctl/runs/pong-01234567", "kv": {}})
    ended = {"exitCode": 3, "reason": "Error", "message": words, "finishedAt": "2026-01-02T03:04:05Z"}
    down.api.stuck.add("reader")
    down.api.on_tick = told(
        down, {"phase": "Failed", "containerStatuses": [{"name": "reader", "state": {"terminated": ended}}]}
    )
    with pytest.raises(BackendUnreachable, match=r"does not run: .*there is no /rlctl/runs/pong-01234567"):
        read(down)


def test_a_program_that_does_not_listen_yet_is_asked_again(down: Lab) -> None:
    answer, asked = down.api.manager, []
    assert answer is not None

    def late(method: str, path: str, body: Any) -> tuple[int, Any]:
        asked.append(path)
        if len(asked) < 4:
            raise OSError("nobody listens")
        return answer(method, path, body)

    down.api.manager = late
    with down.backend().stored_files("pong") as files:
        assert files.sizes("models")


def test_a_pod_that_somebody_removes_is_told(down: Lab) -> None:
    down.api.stuck.add("reader")

    def remove() -> None:
        for key in [key for key in down.api.objects if key.kind == "Pod"]:
            down.api.remove(key)

    down.api.on_tick = remove
    with pytest.raises(BackendUnreachable, match="was removed from outside"):
        read(down)
    assert not readers(down)


def test_a_run_of_which_no_up_came_to_its_end_says_that_nothing_is_known(lab: Lab, layout: Layout) -> None:
    lab.api.refuse = lambda method, key: forbidden(key) if key.kind == "StatefulSet" and method == "PATCH" else None
    with pytest.raises(RlctlError):
        lab.up(spec_of())
    lab.api.refuse = lambda method, key: None
    lab.down()
    assert lab.backend().find("pong") is not None
    with pytest.raises(Conflict, match="nothing is recorded of how its volume is reached"):
        read(lab)
