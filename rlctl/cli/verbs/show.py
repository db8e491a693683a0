"""`rlctl render` prints what `up` would send; `rlctl diff` what it would change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlctl.backends.files import writing
from rlctl.cli.apply import diff_lines
from rlctl.cli.context import ON_CLUSTERS, World
from rlctl.cli.options import (
    OptionalSpecs,
    Sets,
    Specs,
    Target,
    complete_role,
    verb,
)
from rlctl.cli.run.prepare import Rendered, check_place, load, offline, prepare, say_notes
from rlctl.errors import Refused, UsageError

if TYPE_CHECKING:
    from rlctl.backends.base import Document


_ADMIN = "rlctl render --admin -n NAMESPACE --user NAME | kubectl apply --server-side -f -"


@verb("namespace")
def render(
    world: World,
    specs: OptionalSpecs = None,
    sets: Sets = None,
    role: Annotated[
        str | None, typer.Option("--role", help="Documents of this role only.", autocompletion=complete_role)
    ] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out-dir", metavar="DIR", help="Write files below an empty folder instead.")
    ] = None,
    target: Target = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="Print what an administrator has to create; takes -n instead of a spec.")
    ] = False,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="With --admin: who may train there.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="With --admin: whose members may train there.")
    ] = None,
) -> int:
    """Print the documents that `rlctl up` sends.

    Byte for byte, in a stable order. A run that has never been started has no uid yet: zeros stand for it. No cluster
    is asked, and a registry only for tags of images that no `up` of this machine has recorded.
    """
    if admin:
        return _admin(world, specs or [], user or "", group or "", out_dir)
    if user or group:
        raise UsageError("--user and --group go with --admin", hint=_ADMIN)
    if world.cluster.namespace is not None:
        raise UsageError("-n goes with --admin: documents name no namespace", hint="kubectl apply -n NAMESPACE")
    loaded = load(world, specs or [], sets, target)
    on_cluster = loaded.spec.target in ON_CLUSTERS
    rendered: Rendered = offline(world, loaded) if on_cluster else prepare(world, loaded, mint=False)
    plan, all_documents = rendered.plan, rendered.documents
    say_notes(world, rendered)
    documents = [document for document in all_documents if role is None or document.role == role]
    if role is not None and not documents:
        roles = dict.fromkeys(document.role for document in all_documents if document.role)
        raise UsageError(f"no document belongs to role {role}", hint=f"roles: {', '.join(roles)}")
    _print(world, documents, out_dir)
    world.document(
        {
            "run": plan.run,
            "uid": plan.uid,
            "documents": list(map(_as_plain, documents)),
        }
    )
    return 0


def _admin(world: World, specs: Sequence[Path], user: str, group: str, out_dir: Path | None) -> int:
    """Print objects that `up` never sends, because the user of a namespace has no right to."""
    namespace = world.cluster.namespace or world.usual_cluster.namespace
    if specs:
        raise UsageError("--admin takes no spec", hint=_ADMIN)
    if namespace is None:
        raise UsageError("--admin needs a namespace", hint=_ADMIN)
    if bool(user) == bool(group):
        raise UsageError("--admin needs either --user or --group: who may train there", hint=_ADMIN)
    from rlctl.render.kubernetes import admin

    documents = admin(namespace, user, group=group)
    _print(world, documents, out_dir)
    plain = list(map(_as_plain, documents))
    world.document({"namespace": namespace, "user": user or None, "group": group or None, "documents": plain})
    return 0


def _print(world: World, documents: Sequence[Document], out_dir: Path | None) -> None:
    if out_dir is not None:
        _write(out_dir, documents)
        world.say(f"{len(documents)} files below {out_dir}")
        return
    for document in documents:
        came = f" from {document.origin}" if document.origin else ""
        if document.name.endswith((".yaml", ".yml")):
            world.data("---")  # so that all of it is one stream for kubectl
        world.data(f"# ==> {document.name}{came}")
        world.data(document.text.removesuffix("\n"))


def _as_plain(document: Document) -> dict[str, str]:
    return {"name": document.name, "role": document.role, "origin": document.origin, "text": document.text}


def _write(folder: Path, documents: Sequence[Document]) -> None:
    with writing(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise Refused(f"{folder} is not an empty folder", hint="choose another --out-dir")
        for document in documents:
            path = folder / document.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(document.text, encoding="utf-8")


@verb("namespace", "context")
def diff(
    world: World,
    specs: Specs,
    sets: Sets = None,
    target: Target = None,
) -> int:
    """Show what `rlctl up` would change.

    Exit 1 when something differs, 0 when nothing does, 3 or more when that cannot be said. First what each changed
    field does (live, restart of which roles, or refused), then object by object (+ new, ~ changed, - removed) a
    unified diff. On a cluster the server itself judges, and changes nothing.
    """
    loaded = load(world, specs, sets, target)
    check_place(world, loaded)
    prepared = prepare(world, loaded, mint=False)
    say_notes(world, prepared)
    if prepared.state is None:
        world.say(f"{prepared.plan.run} does not exist; `rlctl up` would create all of it")
    diff_lines.say_changes(world, prepared.changes)
    found = diff_lines.tell(world, prepared.backend.differences(prepared.plan, prepared.documents))
    world.document(
        {
            "run": prepared.plan.run,
            "exists": prepared.state is not None,
            "changes": prepared.changes,
            "diff": [line for difference in found for line in difference.lines],
            "objects": found,
        }
    )
    return int(bool(prepared.state is None or prepared.changes or diff_lines.differ(found)))
