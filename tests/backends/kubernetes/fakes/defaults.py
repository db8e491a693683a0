"""Defaults that an API server fills in, and its form of values: enough to disturb a comparison."""

from __future__ import annotations

import re
from typing import Any

Object = dict[str, Any]


def fill(thing: Object) -> None:
    """Set defaults of the kinds that we send, in place."""
    spec = thing.get("spec")
    kind = thing["kind"]
    if kind in ("Deployment", "StatefulSet") and isinstance(spec, dict):
        spec.setdefault("replicas", 1)
        spec.setdefault("revisionHistoryLimit", 10)
        _pod(spec["template"]["spec"])
        if kind == "Deployment":
            spec.setdefault("progressDeadlineSeconds", 600)
            strategy = spec.setdefault("strategy", {})
            strategy.setdefault("type", "RollingUpdate")
        else:
            spec.setdefault("podManagementPolicy", "OrderedReady")
            spec.setdefault("updateStrategy", {}).setdefault("type", "RollingUpdate")
            spec.setdefault("persistentVolumeClaimRetentionPolicy", {"whenDeleted": "Retain", "whenScaled": "Retain"})
    elif kind == "Service":
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        spec.setdefault("internalTrafficPolicy", "Cluster")
        spec.setdefault("clusterIP", "10.96.0.7")
        spec.setdefault("clusterIPs", [spec["clusterIP"]])
        for port in spec.get("ports") or []:
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port["port"])
    elif kind == "PersistentVolumeClaim":
        spec.setdefault("storageClassName", "shared")
        spec.setdefault("volumeMode", "Filesystem")
        _quantities(spec.get("resources") or {})
    elif kind == "NetworkPolicy":
        for rule in [*(spec.get("ingress") or []), *(spec.get("egress") or [])]:
            for port in rule.get("ports") or []:
                port.setdefault("protocol", "TCP")
    elif kind == "Pod" and isinstance(spec, dict):
        _pod(spec)


def _pod(spec: Object) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("securityContext", {})
    if "serviceAccountName" in spec:
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    for container in [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]:
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("imagePullPolicy", "IfNotPresent")
        for port in container.get("ports") or []:
            port.setdefault("protocol", "TCP")
        for variable in container.get("env") or []:
            field = (variable.get("valueFrom") or {}).get("fieldRef")
            if field is not None:
                field.setdefault("apiVersion", "v1")
            if variable.get("value") == "":
                del variable["value"]
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            if probe in container:
                for name, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1)):
                    container[probe].setdefault(name, value)
                container[probe].setdefault("failureThreshold", 3)
                if "httpGet" in container[probe]:
                    container[probe]["httpGet"].setdefault("scheme", "HTTP")
        _quantities(container.get("resources") or {})
    for volume in spec.get("volumes") or []:
        for source in ("configMap", "secret", "projected"):
            if source in volume:
                volume[source].setdefault("defaultMode", 420)
        if "emptyDir" in volume and "sizeLimit" in volume["emptyDir"]:
            volume["emptyDir"]["sizeLimit"] = canonical(volume["emptyDir"]["sizeLimit"])


def _quantities(resources: Object) -> None:
    for part in ("limits", "requests"):
        if part in resources:
            resources[part] = {name: canonical(value) for name, value in resources[part].items()}


def canonical(value: Any) -> str:
    """A quantity as the server writes it: 1000m is 1, 1024Mi is 1Gi, 0.5 is 500m."""
    text = str(value)
    match = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", text)
    if match:
        number, suffixes = int(match[1]), ["Ki", "Mi", "Gi", "Ti"]
        index = suffixes.index(match[2])
        while number and number % 1024 == 0 and index < 3:
            number, index = number // 1024, index + 1
        return f"{number}{suffixes[index]}"
    match = re.fullmatch(r"(\d+)m", text)
    if match and int(match[1]) % 1000 == 0:
        return str(int(match[1]) // 1000)
    match = re.fullmatch(r"(\d+)\.(\d+)", text)
    if match:
        milli = round(float(text) * 1000)
        return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"
    return text
