"""Causes of a container that cannot be created, does not stay up, or does not answer."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from rlctl.backends.crashes import SIGNALS, USER_FAULT, too_often
from rlctl.backends.kubernetes.api.interface import Object
from rlctl.backends.kubernetes.diagnose.causes import images, volumes
from rlctl.backends.kubernetes.diagnose.causes.base import (
    GRACE_S,
    Cause,
    RelatedObjects,
    State,
    age_s,
    describe,
    evidence,
    name_of,
    namespaced,
    said_by,
    settled,
    stable,
)
from rlctl.backends.records.tail import last_error, readable, whole
from rlctl.spec.words import duration

LAST_LINES: Final = 5
_RECENT_S: Final = 120.0
"""Seconds after a restart in which a container is still judged by its previous life."""
_KEPT_BYTES: Final = 2000
"""Bytes of a log at which it counts as cut: Kubernetes keeps the last 2048."""
_SIGNALS: Final = {**SIGNALS, 15: "SIGTERM: it was told to end"}
_TOLD_TO_END: Final = (0, 137, 143)
"""Exit codes of containers that were told to end: 0 when one obeyed."""
_NOT_RUN = re.compile(r"exec \S+: |exec user process caused|standard_init_linux")
_NO_COMMAND = re.compile(
    r'exec:? \\?"?([^"\\:\s]+)\\?"?: (executable file not found|(?:stat .*)?no such file|permission denied)'
)


def config(pod: Object, status: Object, related: RelatedObjects) -> Cause | None:
    """Cause for which a container cannot be created from its spec; None for any other reason."""
    waiting = (status.get("state") or {}).get("waiting") or {}
    reason, message = str(waiting.get("reason", "")), str(waiting.get("message", ""))
    if reason == "CreateContainerConfigError":
        return settled(pod, related, _config(pod, evidence(reason, message), message))
    if reason in ("CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError"):
        return start(pod, reason, message)
    return None


def _config(pod: Object, said: str, message: str) -> Cause:
    ns = namespaced(pod)
    if key := re.search(r"couldn't find key (\S+) in (Secret|ConfigMap) (\S+)", message):
        text = f"the {key[2]} {key[3].rpartition('/')[2]} has no key {key[1]}"
        name = key[3].rpartition("/")[2]
        again = f"kubectl{ns} describe {key[2].lower()} {name}  (rlctl up writes its own again)"
        return Cause("config-key-missing", text, "failed", said, again, permanent=True)
    if missing := re.search(r'(secret|configmap|serviceaccount)s? "([^"]+)" not found', message, re.IGNORECASE):
        kind = {"secret": "Secret", "configmap": "ConfigMap"}.get(missing[1].lower(), "ServiceAccount")
        text = f"there is no {kind} {missing[2]}, which it reads"
        again = f"kubectl{ns} get {kind.lower()}s  (rlctl up writes its own again)"
        return Cause("config-object-missing", text, "failed", said, again, permanent=True)
    if "runAsNonRoot" in message or "non-root" in message:
        text = "its image runs as root, or names its user by a word, and the pod must not run as root"
        return Cause(
            "config-root", text, "failed", said, "set USER to a number above 10000 in the Dockerfile", permanent=True
        )
    text = "its container cannot be configured"
    return Cause("config", text, "failed", said, describe(pod), permanent=True, key=stable(message))


def start(pod: Object, reason: str, message: str) -> Cause:
    """Cause for which a container was created and could not be started."""
    said = evidence(reason, message)
    if "argument list too long" in message:
        text = "its arguments and environment are larger than the kernel takes"
        return Cause("start-too-long", text, "failed", said, describe(pod), permanent=True)
    if command := _NO_COMMAND.search(message):
        why = "may not be executed" if "denied" in command[2] else "is not in its image"
        text = f"the command {command[1]} {why}"
        again = "rlctl image build  (the image is not one of rlctl's)"
        return Cause("start-command", text, "failed", said, again, permanent=True)
    if "exec format error" in message:
        text = "its image is for another processor"
        return Cause("image-platform", text, "failed", said, "rlctl image build  (for that platform)", permanent=True)
    if re.search(r"nvidia|libcuda|cdi|device", message, re.IGNORECASE):
        return Cause("start-device", "its node cannot give it the GPU", "backoff", said, describe(pod), key="device")
    return Cause("start", "its container cannot be started", "backoff", said, describe(pod), key=stable(message))


def crash(pod: Object, status: Object, spec: Object, related: RelatedObjects) -> Cause | None:
    """Cause for which a container does not stay up; None when it has not ended, or ended in good order or long ago."""
    state, last = status.get("state") or {}, status.get("lastState") or {}
    waiting, running = state.get("waiting") or {}, state.get("running") or {}
    ended = state.get("terminated") or last.get("terminated") or {}
    looping = waiting.get("reason") == "CrashLoopBackOff"
    if not looping and (not ended or age_s(running.get("startedAt"), related.now) > _RECENT_S):
        return None
    code = int(ended.get("exitCode") or 0)
    if not looping and code == 0 and (running or spec.get("name") in _first(pod)):
        return None
    raw = _lines(pod, ended, related)
    reason, message = str(ended.get("reason", "")), str(ended.get("message", ""))
    if reason in ("StartError", "ContainerCannotRun"):
        return _again(start(pod, reason, message), looping)
    if raw and _NOT_RUN.match(raw[-1]):  # the runtime could create the container, and then not execute the program
        return _again(start(pod, reason, raw[-1]), looping)
    said = evidence(str(waiting.get("reason", "")), str(waiting.get("message", ""))) if looping else ""
    death = _Death(
        code=code,
        restarts=int(status.get("restartCount") or 0),
        looping=looping,
        said=said or evidence(reason or "Terminated", f"exit code {code}"),
        next=said_by(pod, "--previous", "--tail 50"),
        fault=last_error(raw, 0.0),
        lines=tuple(readable(raw)[-LAST_LINES:]),
    )
    if reason == "OOMKilled":
        return _memory(death, spec)
    if code in _TOLD_TO_END and (probe := _probe_that_killed(pod, related)) is not None:
        return death.cause("probe-killed", f"was killed: {_probe_words(probe)}", said=evidence("Unhealthy", probe))
    how, kind = _how(code) if ended else ("does not stay up", "crash")
    if ended and code == 0 and not looping:
        how = "has ended in good order, and is started again"
    text = how + (f": {death.fault}" if death.fault else "")
    if code == USER_FAULT and not death.fault:
        text += " (something that only you can mend)"
    return death.cause(kind, text, key=f"{how} {stable(death.fault)}")


@dataclass(frozen=True, slots=True)
class _Death:
    """Last end of a container."""

    code: int
    restarts: int
    looping: bool  # Kubernetes waits before the next restart
    said: str
    next: str
    fault: str  # last error of its log
    lines: tuple[str, ...]

    def cause(self, kind: str, text: str, *, said: str = "", again: str = "", key: str = "") -> Cause:
        permanent = self.code == USER_FAULT or too_often(self.restarts + 1)
        state: State = "failed" if permanent else "backoff" if self.looping else "starting"
        return Cause(
            kind, text, state, said or self.said, again or self.next, permanent=permanent, lines=self.lines, key=key
        )


def _first(pod: Object) -> list[str]:
    """Names of init containers, which are to end before the others start."""
    return [str(each.get("name")) for each in (pod.get("spec") or {}).get("initContainers") or ()]


def _how(code: int) -> tuple[str, str]:
    if (number := code - 128) > 0:
        named = f" ({_SIGNALS[number]})" if number in _SIGNALS else ""
        return f"was ended by signal {number}{named}", f"signal-{number}"
    if code == 0:
        return "ends by itself in good order, again and again", "ends"
    if code in (126, 127):
        return f"exited {code}: its command cannot be executed in this image", "start-command"
    return f"exited {code}", "crash"


def _memory(death: _Death, spec: Object) -> Cause:
    limit = ((spec.get("resources") or {}).get("limits") or {}).get("memory")
    said = death.said if "OOM" in death.said else f"OOMKilled (exit code {death.code}); {death.said}"
    if not limit:
        return death.cause("oom", "was killed: its node ran out of memory", said=said)
    text = f"was killed for memory: it needs more than its limit of {limit}"
    again = "raise memory under roles: in the spec, or give it fewer envs; then rlctl up SPEC"
    return death.cause("oom", text, said=said, again=again)


def _probe_that_killed(pod: Object, related: RelatedObjects) -> str | None:
    """Message of the kubelet about the probe because of which it killed a container."""
    killed = [
        event
        for event in related.of("Pod", name_of(pod), "Killing")
        if re.search(r"failed (liveness|startup) probe", str(event.get("message", "")))
    ]
    if not killed:
        return None
    for event in related.of("Pod", name_of(pod), "Unhealthy"):
        message = str(event.get("message", ""))
        if re.match(r"liveness|startup", message, re.IGNORECASE):
            return message
    return str(killed[0].get("message", ""))


def creating(pod: Object, related: RelatedObjects) -> Cause:
    """Cause for which a scheduled pod has no container yet."""
    if (mounted := volumes.mount(pod, related)) is not None:
        return mounted
    show = describe(pod)
    for event in related.of("Pod", name_of(pod), "FailedCreatePodSandBox", "NetworkNotReady", "FailedPodSandBoxStatus"):
        said = evidence(str(event.get("reason")), str(event.get("message", "")))
        if related.of("Pod", name_of(pod), "Pulling", "Created", "Started"):
            break  # it has got past that stage
        text = "its node cannot give it a network"
        return Cause("sandbox", text, volumes.still(pod, related), said, show, key="sandbox")
    if (fetched := images.pulling(pod, related)) is not None:
        image, event = fetched
        since = event.get("firstTimestamp") or event.get("lastTimestamp") or event.get("eventTime")
        text = f"its node fetches image {image}"
        said = f"{text} since {duration(age_s(since, related.now))}"
        return Cause("pulling", text, "starting", said, show)
    waited_s = age_s((pod.get("status") or {}).get("startTime"), related.now)
    state: State = "starting" if waited_s < GRACE_S else "backoff"
    text = "is being made" if state == "starting" else "has its node and is not started there"
    return Cause("creating", text, state, "", show)


def unready(pod: Object, related: RelatedObjects) -> Cause | None:
    """Cause for which a pod whose containers run is not ready."""
    begun = [
        age_s(((status.get("state") or {}).get("running") or {}).get("startedAt"), related.now)
        for status in (pod.get("status") or {}).get("containerStatuses") or ()
    ]
    lived_s = min(begun, default=0.0)
    state: State = "starting" if lived_s < GRACE_S else "backoff"
    show = said_by(pod, "--tail 50")
    for event in related.of("Pod", name_of(pod), "Unhealthy", "ProbeWarning"):
        message = str(event.get("message", ""))
        text = f"runs, but {_probe_words(message)}"
        return Cause("probe", text, state, evidence("Unhealthy", message), show, key=stable(message))
    text = "runs, and is not ready yet" if state == "starting" else "runs, but does not become ready"
    return Cause("not-ready", text, state, "", show, key=state)


def _probe_words(message: str) -> str:
    """ "its readiness probe is answered with 503", from the kubelet's message."""
    probe = found[1].lower() if (found := re.match(r"(?:Container \S+ failed )?(\w+) probe", message)) else "health"
    if code := re.search(r"statuscode: (\d+)", message):
        return f"its {probe} probe is answered with {code[1]}"
    if "refused" in message:
        return f"nothing listens where its {probe} probe asks"
    if "deadline exceeded" in message or "timeout" in message.lower():
        return f"its {probe} probe is not answered in time"
    return f"its {probe} probe fails"


def _lines(pod: Object, ended: Object, related: RelatedObjects) -> list[str]:
    """Last log lines of the previous life: Kubernetes keeps them as the message of a container that failed."""
    told = related.logs.get(name_of(pod))
    if told is None:
        kept = str(ended.get("message", ""))
        told = whole(kept.splitlines())[1 if len(kept.encode()) >= _KEPT_BYTES else 0 :]  # cut at its beginning
    return [line for line in told if line.strip()]


def _again(found: Cause, looping: bool) -> Cause:
    return found if looping or found.permanent else replace(found, state="starting")
