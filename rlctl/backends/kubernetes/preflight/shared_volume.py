"""Volume of a run before it is created: whether all nodes can mount it, and its speed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rlctl.backends.base import Check
from rlctl.backends.kubernetes.api.interface import Api, Key, Object, kubectl
from rlctl.backends.kubernetes.diagnose.causes.volumes import claims_of
from rlctl.backends.kubernetes.preflight import fleet, storage_classes
from rlctl.backends.kubernetes.preflight.fleet import MODEL_MB, Fleet
from rlctl.backends.kubernetes.preflight.storage_classes import StorageClass

_SLOW_S: Final = 30.0


def volume(api: Api, run: Fleet) -> Iterator[Check]:
    """Whether all nodes can mount the volume, and how long they take to read a model from it."""
    known = storage_classes.read(api)
    own = {key.name: thing for key, thing in run.objects.items() if key.kind == "PersistentVolumeClaim"}
    mounted = dict.fromkeys(name for key in run.pods for name in claims_of(fleet.template(run.objects[key])))
    lives = {name: api.get(Key("PersistentVolumeClaim", name)) for name in mounted}
    for name, live in lives.items():
        if live is not None and ((live.get("status") or {}).get("phase") == "Bound" or name not in own):
            yield _existing(name, live)
        elif name in own:
            yield _class(known, name, own[name])
        else:
            text = f"there is no PersistentVolumeClaim {name} in namespace {api.namespace}"
            yield Check("storage", "problem", text, f"{kubectl(api)} get pvc  (storage.claim names it)")
    name = next(iter([*own, *mounted]), "")
    yield _bandwidth(run, known, lives.get(name) or own.get(name) or {})


def _existing(name: str, claim: Object) -> Check:
    spec, status = claim.get("spec") or {}, claim.get("status") or {}
    modes = status.get("accessModes") or spec.get("accessModes") or []
    size = (status.get("capacity") or {}).get("storage") or "?"
    if "ReadWriteMany" not in modes:
        text = f"claim {name} is {', '.join(modes)}: it cannot be mounted on several nodes"
        return Check("storage", "problem", text, "name a ReadWriteMany claim under storage.claim")
    return Check("storage", "ok", f"claim {name}: {size}, ReadWriteMany, class {spec.get('storageClassName') or '-'}")


def _class(known: list[StorageClass] | str, name: str, claim: Object) -> Check:
    wanted = (claim.get("spec") or {}).get("storageClassName")
    size = (((claim.get("spec") or {}).get("resources") or {}).get("requests") or {}).get("storage", "?")
    if isinstance(known, str):
        return Check("storage", "not checked", f"storage class {wanted or '(default)'}: {known}")
    chosen = _chosen(known, wanted)
    listed = ", ".join(each.name for each in known) or "none"
    again = "set storage.class to one that shares between nodes, or storage.claim to an existing claim"
    if chosen is None:
        missing = f"storage class {wanted} does not exist" if wanted else "there is no default storage class"
        return Check("storage", "problem", f"{missing}; there are: {listed}", again)
    if chosen.shared is False:
        text = f"storage class {chosen.name} ({chosen.product}) does not share a volume between nodes"
        return Check("storage", "problem", text, again)
    text = f"claim {name}: {size} of class {chosen.name} ({chosen.product})"
    if chosen.shared is None:
        return Check("storage", "not checked", f"{text}; whether it shares between nodes is not known to rlctl", "")
    return Check("storage", "ok", f"{text}, which shares between nodes")


def _chosen(known: list[StorageClass], wanted: str | None) -> StorageClass | None:
    return next((each for each in known if (each.name == wanted if wanted else each.default)), None)


def _bandwidth(run: Fleet, known: list[StorageClass] | str, claim: Object) -> Check:
    readers = sum(count for key, count in run.pods.items() if claims_of(fleet.template(run.objects[key])))
    wanted = (claim.get("spec") or {}).get("storageClassName")
    chosen = None if isinstance(known, str) or wanted == "" else _chosen(known, wanted)  # "": a volume without a class
    known_bandwidth = storage_classes.MIB_PER_S.get(chosen.provisioner if chosen else "")
    bandwidth = known_bandwidth or storage_classes.UNKNOWN_MIB_PER_S
    seconds = readers * MODEL_MB * 1e6 / (bandwidth * 2**20)
    text = (
        f"{readers:,} pods mount the volume: each {MODEL_MB:.0f} MB of model takes {seconds:,.1f} s to read "
        f"({readers:,} x {MODEL_MB:.0f} MB / {bandwidth:.0f} MiB/s{'' if known_bandwidth else ', assumed'})"
    )
    slow = seconds > _SLOW_S
    again = "name a class with more bandwidth under storage.class" if slow else ""
    return Check("volume", "warning" if slow else "ok", text, again)
