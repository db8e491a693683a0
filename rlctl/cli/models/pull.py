"""A stored model in a folder of its own, which describes itself.

policy.safetensors   the weights of the network
policy.json          spaces, observations, network and algorithm: what it takes to make the policy anew
run.json             where it comes from: run, generation, evaluations, and the resolved spec
model.sig            signature of the three, where a key is given
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from rlctl import signing
from rlctl.backends.files import link_or_copy, writing
from rlctl.cli.models.listing import (
    PIECE_BYTES,
    StoredModel,
    chosen,
    read_whole,
    require_described,
    stored_models,
    warn,
)
from rlctl.cli.models.tensors import NoWeights, weights
from rlctl.errors import Refused, RlctlError
from rlctl.spec.runs.model_names import TRIES

if TYPE_CHECKING:
    from rlctl.backends.base import RunState, StoredFiles

TENSORS: Final = "policy.safetensors"
DESCRIPTION: Final = "policy.json"
ORIGIN: Final = "run.json"
_UNFINISHED: Final = ".rlctl-pull-"


def pull(files: StoredFiles, model: StoredModel, state: RunState, folder: Path, sign: Path | None = None) -> list[Path]:
    """Copy a model into a folder, whole or not at all.

    Args:
        folder: new, or empty.
        sign: private key.

    Returns:
        The files.

    Raises:
        Refused: the folder is not empty.
        UsageError: the key cannot sign, or the folder cannot be written.
        RlctlError: the model is damaged.
    """
    if sign is not None:
        signing.require_signer(sign)
    written = [folder / name for name in (DESCRIPTION, TENSORS, ORIGIN, *([signing.SIGNATURE] if sign else []))]
    folder = folder.resolve()
    with writing(folder):
        there = folder.exists()
        if there and (not folder.is_dir() or any(not path.name.startswith(_UNFINISHED) for path in folder.iterdir())):
            raise Refused(
                f"{folder} is there, and nothing in it is overwritten", hint="name a new folder, or an empty one"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder if there else folder.parent, prefix=_UNFINISHED) as unfinished:
            made = Path(unfinished) / "model"
            made.mkdir(mode=0o755)
            _write(files, model, state, made)
            if sign is not None:
                signing.sign(made, sign)
            if there:  # it may be a mount point, or the working directory of a shell: it stays itself
                for path in written:  # what makes it a model comes last
                    link_or_copy(made / path.name, folder / path.name)
            else:
                made.rename(folder)
    return written


def pull_chosen(
    files: StoredFiles, state: RunState, which: str | None, folder: Path, complain: Callable[[str], object],
    sign: Path | None = None,
) -> tuple[StoredModel, list[Path]]:  # fmt: skip
    """Copy the model of a given name, as `listing.chosen` has it; if a better one replaces it meanwhile, that one.

    Args:
        complain: prints a warning for each model that is damaged.

    Returns:
        The model, and the files.

    Raises:
        UsageError, RlctlError: as `chosen` and `pull`.
    """
    left = TRIES
    while True:
        stored = stored_models(files)
        warn(stored, complain)
        found = chosen(stored, state.run, which)
        try:
            return found, pull(files, found, state, folder, sign)
        except RlctlError:
            left -= 1
            if not left or chosen(stored_models(files), state.run, which).key == found.key:
                raise


def read(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Description and weights of a pulled folder.

    Raises:
        RlctlError: they are damaged, or cannot be read.
    """
    try:
        described = dict(json.loads((folder / DESCRIPTION).read_bytes()))
        data = (folder / Path(described["tensors"]).name).read_bytes()
        if hashlib.sha256(data).hexdigest() != described["sha256"]:
            raise NoWeights("its bytes are not those that were stored")
        return described, data
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = getattr(error, "strerror", None) or error
        raise RlctlError(f"the weights in {folder} are damaged: {why}") from error


def _write(files: StoredFiles, model: StoredModel, state: RunState, folder: Path) -> None:
    described = _description(files, model)
    with (folder / TENSORS).open("w+b") as tensors:
        _copy(files, model, tensors)
        if model.folder == "checkpoints":
            tensors.seek(0)
            try:
                data = weights(tensors, model.steps)
            except NoWeights as error:
                raise RlctlError(f"checkpoints/{model.tensors} is no generation of a learner: {error}") from error
            tensors.seek(0)
            tensors.truncate()
            tensors.write(data)
    sha256 = hashlib.sha256((folder / TENSORS).read_bytes()).hexdigest()
    _json(folder / DESCRIPTION, {**described, "tensors": TENSORS, "sha256": sha256})
    origin = {
        "format": 1, "run": state.run, "uid": state.uid, "rlctl_version": state.rlctl_version, "model": model.name,
        "created": model.created, "evaluations": model.evaluations, "spec": state.spec, "code": state.code,
    }  # fmt: skip
    _json(folder / ORIGIN, origin)


def _description(files: StoredFiles, model: StoredModel) -> dict[str, Any]:
    data = read_whole(files, model.folder, model.description)
    known = model.sha256.get(model.description)
    if known is not None and hashlib.sha256(data).hexdigest() != known:
        raise _damaged(model, model.description)
    try:
        described = json.loads(data)
        require_described(model, described)
        return dict(described)
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged(model, model.description) from error


def _copy(files: StoredFiles, model: StoredModel, to: BinaryIO) -> None:
    """Copy the tensors in chunks, and verify their sha256."""
    digest, offset = hashlib.sha256(), 0
    while piece := files.read(model.folder, model.tensors, offset, PIECE_BYTES):
        to.write(piece)
        digest.update(piece)
        offset += len(piece)
    if digest.hexdigest() != model.sha256[model.tensors]:
        raise _damaged(model, model.tensors)


def _damaged(model: StoredModel, file: str) -> RlctlError:
    return RlctlError(
        f"{model.folder}/{file} is damaged: its bytes are not those that were stored",
        hint="`rlctl models` lists the others",
        objects=(file,),
    )


def _json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
