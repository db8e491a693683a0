"""Storage classes, and whether several nodes can mount their volumes at once: provisioners tell, the API does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rlctl.backends.kubernetes.api.interface import Api, ApiError, Object
from rlctl.backends.kubernetes.api.refusals import unread

_DEFAULT: Final = "storageclass.kubernetes.io/is-default-class"
_SHARED: Final[Mapping[str, str]] = {
    "com.tencent.cloud.csi.cfs": "CFS", "com.tencent.cloud.csi.cfsturbo": "CFS Turbo",
    "efs.csi.aws.com": "EFS", "fsx.csi.aws.com": "FSx for Lustre", "filestore.csi.storage.gke.io": "Filestore",
    "file.csi.azure.com": "Azure Files",
    "nasplugin.csi.alibabacloud.com": "NAS", "sfsturbo.csi.everest.io": "SFS Turbo", "nas.csi.everest.io": "SFS",
    "nfs.csi.k8s.io": "NFS", "driver.longhorn.io": "Longhorn", "csi.weka.io": "Weka", "csi.juicefs.com": "JuiceFS",
    "beegfs.csi.netapp.com": "BeeGFS", "spectrumscale.csi.ibm.com": "Spectrum Scale",
}  # fmt: skip
_SHARED_ENDS: Final = ("cephfs.csi.ceph.com", "/nfs-subdir-external-provisioner", "/nfs", "nfs-client-provisioner")
_ALONE: Final[Mapping[str, str]] = {
    "com.tencent.cloud.csi.cbs": "CBS", "ebs.csi.aws.com": "EBS", "pd.csi.storage.gke.io": "Persistent Disk",
    "disk.csi.azure.com": "Azure Disk", "diskplugin.csi.alibabacloud.com": "cloud disk", "disk.csi.everest.io": "EVS",
    "kubernetes.io/aws-ebs": "EBS", "kubernetes.io/gce-pd": "Persistent Disk", "cloud.tencent.com/qcloud-cbs": "CBS",
    "topolvm.io": "TopoLVM", "local.csi.openebs.io": "OpenEBS local", "microk8s.io/hostpath": "hostpath",
}  # fmt: skip
_EITHER: Final[Mapping[str, str]] = {
    "rancher.io/local-path": "local-path", "kubernetes.io/no-provisioner": "volumes made by hand",
    "k8s.io/minikube-hostpath": "hostpath",
}  # fmt: skip
"""Provisioners whose volumes are shared where they are set up so, or where there is one node."""
_ALONE_ENDS: Final = ("rbd.csi.ceph.com",)
MIB_PER_S: Final[Mapping[str, float]] = {
    "com.tencent.cloud.csi.cfs": 300.0, "com.tencent.cloud.csi.cfsturbo": 1024.0, "efs.csi.aws.com": 500.0,
    "filestore.csi.storage.gke.io": 480.0, "nfs.csi.k8s.io": 100.0,
}  # fmt: skip
"""MiB/s of one file system of the usual tier; `UNKNOWN_MIB_PER_S` for others."""
UNKNOWN_MIB_PER_S: Final = 100.0


@dataclass(frozen=True, slots=True)
class StorageClass:
    """One storage class of the cluster."""

    name: str
    provisioner: str
    default: bool

    @property
    def shared(self) -> bool | None:
        """Whether several nodes can mount its volumes for writing; None: rlctl does not know this provisioner."""
        if self.provisioner in _SHARED or self.provisioner.endswith(_SHARED_ENDS):
            return True
        if self.provisioner in _ALONE or self.provisioner.endswith(_ALONE_ENDS):
            return False
        return None

    @property
    def product(self) -> str:
        known = {**_SHARED, **_ALONE, **_EITHER}
        return known.get(self.provisioner, self.provisioner)


def read(api: Api) -> list[StorageClass] | str:
    """All classes by name, or why they are not known."""
    try:
        found = api.raw("/apis/storage.k8s.io/v1/storageclasses")
    except ApiError as error:
        return unread(error)
    return sorted(map(_of, found.get("items") or ()), key=lambda each: each.name)


def _of(found: Object) -> StorageClass:
    metadata = found.get("metadata") or {}
    default = (metadata.get("annotations") or {}).get(_DEFAULT) == "true"
    return StorageClass(str(metadata.get("name", "")), str(found.get("provisioner", "")), default)
