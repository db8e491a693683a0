"""`up` on a namespace: what is sent, in which order, and that the same again sends nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlctl.backends.base import Applied
from rlctl.backends.kubernetes.api.interface import ApiError, Key, Object
from rlctl.errors import Conflict, PartlyApplied, Unreadable
from rlctl.spec.names import wave
from tests.backends.kubernetes.fakes.lab import BOB, IMAGES, Lab, spec_of
from tests.backends.kubernetes.fakes.selectors import forbidden


def whats(applied: list[Applied]) -> set[str]:
    return {each.what for each in applied}


def test_up_creates_every_document_and_the_keys(lab: Lab) -> None:
    _, rendered = lab.plan(spec_of())
    applied = lab.up()
    assert whats(applied) <= {"created", "changed"}
    assert len(rendered) + 2 <= len([each for each in applied if each.what == "created"]) + 1
    assert {"Secret pong-keys-core", "Secret pong-keys-actor", "ConfigMap pong-revision-1"} <= lab.there()


def test_a_second_up_sends_nothing_but_reads(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.new_command()
    applied = lab.up()
    assert lab.api.requests.writes == 0
    assert whats(applied) == {"unchanged"}


def test_a_second_up_sends_nothing_for_any_shape_of_a_run(home: Path) -> None:
    proxy = {"image": IMAGES["core"], "args": ["--x"], "port": 8080}
    for more in (
        {"roles": {"actor": {"replicas": 2500}}},
        {"roles": {"actor": {"replicas": 0}, "evaluator": {"replicas": 0}}},
        {"storage": {"claim": "shared"}},
        {"roles": {"learner": {"gpu": 1, "cpu": 0.5, "memory": "1024Mi"}}},
        {"kubernetes": {"expose": "loadbalancer", "source_ranges": ["203.0.113.0/24"], "proxy": proxy}},
        {"kubernetes": {"gang": "kueue", "queue": "gpus"}},
    ):
        lab = Lab()
        lab.up(**more)
        lab.settle()
        lab.api.new_command()
        assert whats(lab.up(**more)) == {"unchanged"}, more
        assert lab.api.requests.writes == 0, (more, lab.api.writes)


def test_the_record_is_written_first_and_last(lab: Lab) -> None:
    lab.up()
    writes = [each for each in lab.api.writes if "Lease" not in each]
    assert writes[0] == "POST ConfigMap pong-state"
    assert writes[-1] == "PUT ConfigMap pong-state"
    assert lab.record.state.revision == 1


def test_what_others_need_is_sent_first(lab: Lab) -> None:
    plan, rendered = lab.plan(spec_of())
    lab.up()
    created = [each.split(" ", 1)[1] for each in lab.api.writes if each.startswith("PATCH")]
    roles = {f"{'Deployment' if 'deployment' in each.name else 'StatefulSet'} {plan.run}": each for each in rendered}
    assert roles
    order = [wave(name.split(" ")[0], _role(lab, name)) for name in dict.fromkeys(created)]
    assert order == sorted(order)


def _role(lab: Lab, name: str) -> str:
    labels: dict[str, str] = lab.api.objects[Key(*name.split(" "))]["metadata"]["labels"]
    return labels.get("app.kubernetes.io/component", "")


def test_every_workload_has_the_replicas_of_the_plan_and_their_field_is_not_ours(lab: Lab) -> None:
    lab.up()
    lab.settle()
    assert lab.replicas("pong-actor-0") == 4
    assert lab.replicas("pong-manager", "StatefulSet") == 1
    for key, thing in lab.api.objects.items():
        if key.kind in ("Deployment", "StatefulSet"):
            owners = {
                entry["manager"]
                for entry in thing["metadata"]["managedFields"]
                if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
            }
            assert owners == {"rlctl-scale"}, key


def test_no_lock_is_left_and_none_is_taken_when_nothing_differs(lab: Lab) -> None:
    lab.up()
    assert Key("Lease", "pong-lock") not in lab.api.objects
    lab.settle()
    lab.api.new_command()
    lab.up()
    assert not lab.api.writes


def test_a_new_learning_rate_restarts_the_learner_only(lab: Lab) -> None:
    lab.up()
    lab.settle()
    uids = {key: thing["metadata"]["generation"] for key, thing in lab.api.objects.items() if key.kind != "Pod"}
    applied = lab.up(algorithm={"name": "impala", "lr": 0.001})
    assert [each.object for each in applied if each.what == "restarted"] == ["StatefulSet pong-learner"]
    moved = {
        str(key) for key, thing in lab.api.objects.items()
        if key in uids and key.kind in ("Deployment", "StatefulSet") and thing["metadata"]["generation"] != uids[key]
    }  # fmt: skip
    assert moved == {"StatefulSet pong-learner"}


def test_more_actors_in_the_spec_restart_nothing(lab: Lab) -> None:
    lab.up()
    lab.settle()
    applied = lab.up(roles={"actor": {"replicas": 7}})
    assert "restarted" not in whats(applied)
    assert lab.replicas("pong-actor-0") == 7


def test_another_image_restarts_the_roles_that_run_it(lab: Lab) -> None:
    lab.up()
    lab.settle()
    other = "registry.example/actor@sha256:" + "cd" * 32
    applied = lab.up(images={"actor": other})
    restarted = {each.object for each in applied if each.what == "restarted"}
    assert {"Deployment pong-actor-0", "Deployment pong-evaluator"} <= restarted
    assert "StatefulSet pong-learner" not in restarted


def test_old_run_files_stay_for_pods_that_were_not_replaced_yet(lab: Lab) -> None:
    lab.up()
    first = {name for name in lab.there() if name.startswith("ConfigMap pong-learner-")}
    lab.up(algorithm={"name": "impala", "lr": 0.001})
    assert first < {name for name in lab.there() if name.startswith("ConfigMap pong-learner-")}
    lab.settle()
    lab.api.new_command()
    lab.up(algorithm={"name": "impala", "lr": 0.001})
    assert lab.api.requests.writes == 0


def test_only_the_last_five_revisions_and_their_run_files_stay(lab: Lab) -> None:
    for number in range(8):
        lab.up(algorithm={"name": "impala", "lr": 0.001 * (number + 1)})
    files = [name for name in lab.there() if name.startswith("ConfigMap pong-learner-")]
    revisions = [name for name in lab.there() if name.startswith("ConfigMap pong-revision-")]
    assert len(files) == 5
    assert sorted(revisions) == [f"ConfigMap pong-revision-{number}" for number in range(4, 9)]
    assert lab.there() - lab.known() == set()


def test_what_no_document_names_any_more_is_removed(lab: Lab) -> None:
    lab.up(roles={"actor": {"replicas": 1500, "max_replicas": 2000}})
    lab.settle()
    assert "Deployment pong-actor-1" in lab.there()
    applied = lab.up(roles={"actor": {"replicas": 800, "max_replicas": 1000}})
    assert Applied("Deployment pong-actor-1", "removed", "no document names it any more") in applied
    assert "Deployment pong-actor-1" not in lab.there()


def test_prune_never_touches_what_is_not_ours(lab: Lab) -> None:
    lab.up(roles={"actor": {"replicas": 1500, "max_replicas": 2000}})
    lab.settle()

    def taken(thing: Object) -> None:
        thing["metadata"]["annotations"]["rlctl.dev/uid"] = "f" * 32

    lab.api.edit(Key("Deployment", "pong-actor-1"), "kubectl-edit", taken)
    lab.up(roles={"actor": {"replicas": 800, "max_replicas": 1000}})
    assert "Deployment pong-actor-1" in lab.there()
    assert "it is not of this run any more" in lab.notes[-1]


def test_an_object_of_somebody_else_is_not_taken_over(lab: Lab) -> None:
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "pong-manager"}, "spec": {"ports": []}}
    lab.api.put({**theirs, "metadata": {"name": "pong-manager", "labels": {"app": "x"}}})
    with pytest.raises(Conflict, match="Service pong-manager: another owner") as error:
        lab.up()
    assert error.value.objects == ("Service pong-manager",)
    assert lab.there() == {"Service pong-manager"}


def test_objects_of_an_earlier_run_of_that_name_are_named(lab: Lab) -> None:
    spec = spec_of()
    lab.up(spec)
    lab.api.remove(Key("ConfigMap", "pong-state"))
    plan, rendered = lab.plan(spec, uid="f" * 32)
    with pytest.raises(Conflict, match="run pong with uid 01234567") as error:
        list(lab.backend().apply(plan, rendered, spec.model_dump(mode="json")))
    assert "Deployment pong-actor-0" in error.value.objects


def test_another_user_is_told_who_owns_the_run(lab: Lab, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.up()
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "bob"))
    bob = Lab(lab.api, BOB)
    lab.api.new_command()
    with pytest.raises(Conflict, match="run pong in namespace rl is owned by alice@desk"):
        bob.up(roles={"actor": {"replicas": 9}})
    assert lab.api.requests.writes == 0
    bob.up(roles={"actor": {"replicas": 9}}, force=True)
    assert lab.replicas("pong-actor-0") == 9
    assert lab.record.by == "alice@desk"


def test_a_run_minted_twice_belongs_to_whoever_was_first(lab: Lab) -> None:
    spec = spec_of()
    early, rendered = lab.plan(spec, uid="f" * 32)
    lab.up(spec)
    with pytest.raises(Conflict, match=r"is owned by alice@desk: started 2026-01-02"):
        list(lab.backend().apply(early, rendered, spec.model_dump(mode="json")))


def test_a_missing_right_is_named_with_its_object_and_user(lab: Lab) -> None:
    lab.api.refuse = lambda method, key: forbidden(key) if (method, key.kind) == ("PATCH", "Service") else None
    said = r"may not create Service pong-\w+ in namespace rl as system:serviceaccount:rl:alice"
    with pytest.raises(PartlyApplied, match=said) as error:
        lab.up()
    assert error.value.exit_code == 8
    assert "rlctl render --admin" in error.value.hint


def test_a_quota_is_explained_by_its_sums(lab: Lab) -> None:
    message = (
        'persistentvolumeclaims "pong-volume" is forbidden: exceeded quota: disk, requested: requests.storage=50Gi, '
        "used: requests.storage=10Gi, limited: requests.storage=20Gi"
    )
    lab.api.refuse = lambda method, key: (
        ApiError(message, status=403, key=key)
        if (method, key.kind) == ("PATCH", "PersistentVolumeClaim") else None
    )  # fmt: skip
    with pytest.raises(PartlyApplied, match=r"quota disk exceeded: requests.storage: 10Gi used \+ 50Gi asked > 20Gi"):
        lab.up()


def test_a_run_does_without_the_role_that_it_may_not_make(lab: Lab) -> None:
    lab.api.refuse = lambda method, key: (
        forbidden(key) if method == "PATCH" and key.kind in ("Role", "RoleBinding") else None
    )
    lab.up()
    assert any("may not create Role pong-manager" in note for note in lab.notes)
    lab.settle()
    lab.api.new_command()
    lab.up()
    assert not lab.api.writes, "it asks by dry runs whether it may by now"
    assert roles_of(lab) == {"same"}


def test_a_run_does_without_the_binding_of_a_role_that_it_may_not_make(lab: Lab) -> None:
    def refuse(method: str, key: Key) -> ApiError | None:
        if (method, key.kind) == ("PATCH", "RoleBinding"):
            return ApiError('roles.rbac.authorization.k8s.io "pong-manager" not found', status=404, key=key)
        return forbidden(key) if (method, key.kind) == ("PATCH", "Role") else None

    lab.api.refuse = refuse
    lab.up()
    assert [key.kind for key in lab.record.denied] == ["Role", "RoleBinding"]
    assert "RoleBinding pong-manager" in lab.notes[-1]
    lab.settle()
    lab.api.new_command()
    lab.up()
    assert not lab.api.writes


def test_the_role_is_made_by_the_next_up_once_it_may_be_made(lab: Lab) -> None:
    lab.api.refuse = lambda method, key: (
        forbidden(key) if method == "PATCH" and key.kind in ("Role", "RoleBinding") else None
    )
    lab.up()
    lab.settle()
    lab.api.refuse = lambda method, key: None
    assert roles_of(lab) == {"add"}
    lab.up()
    assert {"Role pong-manager", "RoleBinding pong-manager"} <= lab.there()
    lab.settle()
    lab.api.new_command()
    lab.up()
    assert lab.api.requests.writes == 0


def roles_of(lab: Lab) -> set[str]:
    plan, rendered = lab.plan(spec_of())
    return {each.what for each in lab.backend().differences(plan, rendered) if each.object.startswith("Role")}


def test_a_server_that_stops_answering_leaves_something_to_go_on_from(lab: Lab) -> None:
    def gone(method: str, key: Key) -> ApiError | None:
        return ApiError("does not answer", status=0) if len(lab.api.writes) > 9 else None

    lab.api.refuse = gone
    with pytest.raises(PartlyApplied, match="was not written: does not answer"):
        lab.up()
    lab.api.refuse = lambda method, key: None
    lab.up()
    assert lab.record.state.revision == 1


def test_changed_live_fields_are_told_to_the_manager(lab: Lab) -> None:
    told = []

    def manager(method: str, path: str, body: object) -> tuple[int, object]:
        told.append((method, path, body))
        return 200, {}

    lab.api.manager = manager
    lab.up()
    lab.settle()
    assert not told
    applied = lab.up(stop={"eval_return": 400})
    assert Applied("StatefulSet pong-manager", "reloaded", "live fields changed") in applied
    method, path, body = told[-1]
    assert (method, path) == ("POST", "/reload")
    assert isinstance(body, dict)
    assert body["live"]["stop"]["eval_return"] == 400
    told.clear()
    lab.up(stop={"eval_return": 400})
    assert not told


def test_a_manager_that_cannot_be_told_is_told_by_the_same_command_later(lab: Lab) -> None:
    lab.up()
    lab.settle()
    lab.api.manager = None
    with pytest.raises(PartlyApplied, match="live fields did not reach the manager"):
        lab.up(stop={"eval_return": 400})
    lab.api.manager = lambda method, path, body: (200, {})
    assert "reloaded" in whats(lab.up(stop={"eval_return": 400}))


def test_the_index_says_where_the_run_is(lab: Lab, home: Path) -> None:
    lab.up()
    entry = json.loads((home / "rlctl" / "index" / "pong.json").read_text())
    assert (entry["target"], entry["namespace"], entry["server"]) == ("kubernetes", "rl", "https://fake:6443")
    assert entry["uid"] == lab.record.state.uid


def test_documents_are_those_that_were_sent(lab: Lab) -> None:
    _, rendered = lab.plan(spec_of())
    lab.up()
    assert sorted(each.name for each in lab.backend().documents("pong")) == sorted(each.name for each in rendered)


def test_a_run_of_another_release_stays_operable(lab: Lab) -> None:
    lab.up()
    lab.settle()
    data = lab.of("ConfigMap", "pong-state")["data"]
    state = json.loads(data["state.json"])
    state |= {"rlctl_version": "0.0.1", "spec": {"run": "pong", "of": "another schema"}}
    data["state.json"] = json.dumps(state)
    lab.scale(actor=6)
    assert lab.replicas("pong-actor-0") == 6
    list(lab.backend().restart("pong", "learner"))
    lab.down()
    assert lab.record.state.rlctl_version == "0.0.1"


def test_a_torn_record_is_told_with_where_the_data_lies(lab: Lab) -> None:
    lab.up()
    data = lab.of("ConfigMap", "pong-state")["data"]
    data["state.json"] = data["state.json"].replace('"format": 1', '"format": 99')
    with pytest.raises(Unreadable, match="ConfigMap pong-state does not hold the state of run pong") as error:
        lab.backend().find("pong")
    assert (error.value.run, error.value.storage) == ("pong", lab.storage)
    with pytest.raises(Unreadable):
        lab.up()


def test_who_may_not_take_the_lock_is_told_in_words(lab: Lab) -> None:
    lab.api.refuse = lambda method, key: forbidden(key, "create") if (method, key.kind) == ("POST", "Lease") else None
    with pytest.raises(ApiError, match="may not create Lease pong-lock in namespace rl as system"):
        lab.up()


def test_who_may_only_read_by_name_can_still_apply(lab: Lab) -> None:
    lab.api.refuse = lambda method, key: forbidden(key, "list") if method == "GET" and not key.name else None
    lab.up()
    lab.settle()
    lab.api.new_command()
    lab.up()
    assert lab.api.requests.writes == 0
