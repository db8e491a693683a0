"""Plan -> documents, for each target a module."""

from __future__ import annotations

from rlctl.plan import Document, Plan
from rlctl.render.encode import to_ini as to_ini
from rlctl.render.encode import to_yaml as to_yaml
from rlctl.render.engine import environment as environment
from rlctl.render.engine import render as render
from rlctl.render.engine import templates as templates
from rlctl.render.kubernetes import cluster_documents as cluster_documents
from rlctl.render.local import interpreter as interpreter
from rlctl.render.local import local_documents as local_documents
from rlctl.spec.layout import RunPlace
from rlctl.spec.schema import Spec


def for_target(plan: Plan, spec: Spec, place: RunPlace | None, python: str) -> list[Document]:
    """Documents of a run on the target of its plan, in the order in which they are applied.

    Args:
        plan: what runs.
        spec: the spec that the plan was made of.
        place: folders of the run; None for a cluster.
        python: the interpreter of all its processes, where they run on this machine.

    Raises:
        SpecError: a fault of a template or a patch, or a value that no document can hold.
    """
    if plan.target == "kubernetes":
        return cluster_documents(plan, spec)
    assert place is not None, "only a cluster is rendered for without a place"
    return local_documents(plan, layout=place.layout, sockets=place.sockets, python=python)
