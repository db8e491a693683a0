"""`rlctl render` prints what `up` would send; `rlctl diff` what it would change."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlctl.cli.options import OutputOption, Quiet, Sets, Specs, Target, complete_role
from rlctl.cli.prepare import prepare, say_findings
from rlctl.cli.world import Output, World
from rlctl.errors import Refused, UsageError

if TYPE_CHECKING:
    from rlctl.backends.base import Document
    from rlctl.plan import Change

_HASH = re.compile(r"-[0-9a-f]{12}(?=\.)")


def render(
    ctx: typer.Context,
    specs: Specs,
    sets: Sets = None,
    role: Annotated[
        str | None, typer.Option("--role", help="Documents of this role only.", autocompletion=complete_role)
    ] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out-dir", metavar="DIR", help="Write files below an empty folder instead.")
    ] = None,
    target: Target = None,
    output: OutputOption = Output.table,
    quiet: Quiet = False,
) -> int:
    """Print the documents that `rlctl up` sends.

    Byte for byte, in a stable order. A run that has never been started has no uid yet: zeros stand for it.
    """
    world: World = ctx.obj.setup(output, quiet)
    prepared = prepare(world, specs, sets, target, mint=False)
    say_findings(world, prepared.loaded)
    documents = [document for document in prepared.documents if role is None or document.role == role]
    if role is not None and not documents:
        roles = dict.fromkeys(document.role for document in prepared.documents if document.role)
        raise UsageError(f"no document belongs to role {role}", hint=f"roles: {', '.join(roles)}")
    if out_dir is not None:
        _write(out_dir, documents)
        world.say(f"{len(documents)} files below {out_dir}")
    else:
        for document in documents:
            came = f" from {document.origin}" if document.origin else ""
            world.data(f"# ==> {document.name}{came}")
            world.data(document.text.removesuffix("\n"))
    world.document(
        {
            "run": prepared.plan.run,
            "uid": prepared.plan.uid,
            "documents": [
                {"name": document.name, "role": document.role, "origin": document.origin, "text": document.text}
                for document in documents
            ],
        }
    )
    return 0


def _write(folder: Path, documents: Sequence[Document]) -> None:
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise Refused(f"{folder} is not an empty folder", hint="choose another --out-dir")
        for document in documents:
            path = folder / document.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(document.text)
    except OSError as error:
        raise UsageError(f"cannot write below {folder}: {(error.strerror or str(error)).lower()}") from error


def diff(
    ctx: typer.Context,
    specs: Specs,
    sets: Sets = None,
    target: Target = None,
    output: OutputOption = Output.table,
    quiet: Quiet = False,
) -> int:
    """Show what `rlctl up` would change.

    Exit 1 when something differs, 0 when nothing does. First what each changed field does (live, restart of
    which roles, or refused), then the documents as a unified diff.
    """
    world: World = ctx.obj.setup(output, quiet)
    prepared = prepare(world, specs, sets, target, mint=False)
    say_findings(world, prepared.loaded)
    old = [] if prepared.state is None else prepared.backend.documents(prepared.plan.run)
    lines = list(differences(old, prepared.documents))
    if prepared.state is None:
        world.say(f"{prepared.plan.run} does not exist; `rlctl up` would create all of it")
    for change in prepared.changes:
        world.data(f"{change.action + (' ' + change.role if change.role else ''):<18} {change.why}")
    for line in lines:
        world.data(line)
    world.document(
        {
            "run": prepared.plan.run,
            "exists": prepared.state is not None,
            "changes": [as_plain(change) for change in prepared.changes],
            "diff": lines,
        }
    )
    return int(bool(prepared.state is None or prepared.changes or lines))


def as_plain(change: Change) -> dict[str, str]:
    return {"role": change.role, "action": change.action, "path": change.path, "why": change.why}


def differences(old: Sequence[Document], new: Sequence[Document]) -> Iterator[str]:
    """A unified diff over all documents; files that differ in nothing but the hash in their name are compared."""
    before = {_HASH.sub("", document.name): document for document in old}
    after = {_HASH.sub("", document.name): document for document in new}
    for key in dict.fromkeys([*before, *after]):
        was, now = before.get(key), after.get(key)
        yield from (
            line.rstrip("\n")
            for line in difflib.unified_diff(
                was.text.splitlines() if was else [],
                now.text.splitlines() if now else [],
                was.name if was else "/dev/null",
                now.name if now else "/dev/null",
                lineterm="",
            )
        )
