"""`rlctl export`: a stored model as one file of another program."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rlctl import signing
from rlctl.backends.files import link_or_copy, require_free, writing
from rlctl.cli.context import World
from rlctl.cli.models.fetched import Code, ModelOrFolder, Sign, Verify, code_of, fetched
from rlctl.cli.models.player import played
from rlctl.cli.models.pull import DESCRIPTION, read
from rlctl.cli.models.tensors import NoWeights, with_metadata
from rlctl.cli.options import Target, verb
from rlctl.cli.text import count, table
from rlctl.errors import RlctlError, UsageError

_FORMATS: Final = (".onnx", ".pt2", ".safetensors")
_ONNX: Final = {"onnx": "export", "onnxscript": "export"}
_UNFINISHED: Final = ".rlctl-export-"
_ORIGIN: Final[tuple[str, ...]] = ("run", "uid", "model", "rlctl_version")


@verb("namespace", "context")
def export(
    world: World,
    model: ModelOrFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Its name ends with .onnx, .pt2 or .safetensors.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    code: Code = None,
    verify: Verify = None,
    sign: Sign = None,
    target: Target = None,
) -> int:
    """Write a stored model as an ONNX, PyTorch or weights file.

    .onnx and .pt2 (torch.export) hold the policy as one function: observations, memory and masks in; the most likely
    action, the parameters of the distribution and the memory out; for any number of observations side by side. The file
    is tried on random observations, and is not left there where it acts otherwise than the policy. .safetensors holds
    the weights. Each describes itself. With --sign its signature lies beside it, in FILE.sig. A file of yours is never
    overwritten without --force (exit 9).
    """
    if file.suffix not in _FORMATS:
        raise UsageError(f"{file} is of no format that is known", hint="name it .onnx, .pt2 or .safetensors")
    require_free(file, force=force)
    if sign is not None:
        signing.require_signer(sign)
        require_free(signing.signature_of(file), force=force)
    told: dict[str, Any] = {"inputs": [], "outputs": [], "checked": None}
    with fetched(world, model, target, verify) as (folder, name, origin), _written(file, force=force) as made:
        world.say(name)
        known = {key: origin.get(key) for key in _ORIGIN}
        if file.suffix == ".safetensors":
            weights = _weights(folder, known)
            with writing(file):
                made.write_bytes(weights)
        else:
            question = {"folder": str(folder), "file": str(made), "origin": known}
            also = _ONNX if file.suffix == ".onnx" else {}
            (told,) = played("export", question, _code(folder, origin, code), answers=1, also=also)
        data = made.read_bytes()
    if sign is not None:
        with writing(signing.signature_of(file)):
            signing.sign(file, sign)
    world.lines(table([(side, *_end(one)) for side in ("inputs", "outputs") for one in told[side]]))
    checked = told["checked"]
    if checked is not None:
        world.say(f"checked by {checked['by']}: acts as the policy, largest difference {checked['difference']:.1g}")
    elif file.suffix != ".safetensors":
        world.complain('warning: not checked, onnxruntime is not installed here: pip install "rlctl[export]"')
    world.say(f"{file}: {count(len(data))}B")
    sha256 = hashlib.sha256(data).hexdigest()
    world.document({"model": name, "file": str(file), "bytes": len(data), "sha256": sha256, **told})
    return 0


@contextmanager
def _written(file: Path, *, force: bool) -> Iterator[Path]:
    """Provide a temporary path of the same suffix; what the block writes there is moved to the file at its end.

    Raises:
        Refused: a file has appeared meanwhile that is not to be overwritten.
    """
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = tempfile.TemporaryDirectory(dir=file.parent, prefix=_UNFINISHED)
    with aside as folder:
        made = Path(folder).resolve() / file.name
        yield made
        require_free(file, force=force)
        with writing(file):
            made.replace(file) if force else link_or_copy(made, file)


def _weights(folder: Path, origin: Mapping[str, Any]) -> bytes:
    """The weights of a pulled folder, with their description.

    Raises:
        RlctlError: they are damaged.
    """
    described, data = read(folder)
    try:
        return with_metadata(data, {DESCRIPTION: json.dumps({**described, "origin": dict(origin)})})
    except NoWeights as error:
        raise RlctlError(f"the weights in {folder} are damaged: {error}") from error


def _code(folder: Path, origin: Mapping[str, Any], stated: Path | None) -> Path | None:
    """Folder of the user's modules if network or algorithm is one of them, else None; no environment is made."""
    try:
        described = json.loads((folder / DESCRIPTION).read_bytes())
        algorithm = described["algorithm"]
        names = described["network"]["torso"], algorithm["name"], algorithm.get("class") or ""
    except (ValueError, KeyError, TypeError) as error:
        raise RlctlError(f"{folder / DESCRIPTION} describes no policy: {error}") from error
    return code_of(origin, stated) if any(":" in name for name in names) else None


def _end(one: Mapping[str, Any]) -> tuple[str, str]:
    return one["name"], f"{one['dtype']} [{', '.join(map(str, one['shape']))}]"
