"""Signatures of models by OpenSSF's model-signing, with a pair of elliptic curve keys: the only module that knows it.

A signature is a Sigstore bundle over the sha256 of every file of a folder, or of one file; `model_signing verify key`
reads it too. No server is contacted, and no name is bound to a key: a verifier has to know whose key it is.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any, Final

from rlctl.errors import BadSignature, UsageError

SIGNATURE: Final = "model.sig"
"""File name of a folder's signature, inside the folder; that of a file is beside it, with `.sig` appended."""
_CURVES: Final = "openssl ecparam -name prime256v1 -genkey -noout -out key.pem; openssl ec -in key.pem -pubout"


def signature_of(model: Path) -> Path:
    """Path of the signature of a folder or a file."""
    return model / SIGNATURE if model.is_dir() else model.with_name(f"{model.name}.sig")


def require_signer(key: Path) -> None:
    """Require that this key can sign.

    Raises:
        UsageError: the extra is not installed, or the file holds no private key that can sign.
    """
    _signer(key)


def sign(model: Path, key: Path) -> Path:
    """Sign a folder or a file.

    Args:
        key: private key on P-256, P-384 or P-521, PEM, without a password.

    Returns:
        The signature's file.

    Raises:
        UsageError: as `require_signer`.
        OSError: the model cannot be read, or the signature not be written.
    """
    to = signature_of(model)
    to.unlink(missing_ok=True)
    _signer(key).set_hashing_config(_hashing(to)).sign(model, to)
    return to


def verify(model: Path, key: Path) -> None:
    """Require that the owner of a key has signed exactly these files.

    Args:
        model: folder or file.
        key: public key, PEM.

    Raises:
        UsageError: the extra is not installed, or the file holds no public key.
        BadSignature: there is no signature, it is of another key, or a file is missing, added or changed.
    """
    signing = _library()
    try:
        verifier = signing.verifying.Config().use_elliptic_key_verifier(public_key=key)
    except (ValueError, OSError, TypeError, AttributeError) as error:  # AttributeError: a key of another kind
        raise UsageError(f"{key} is no public key on an elliptic curve: {_words(error)}", hint=_CURVES) from error
    signature = signature_of(model)
    if not signature.is_file():
        raise BadSignature(f"{model} is not signed: there is no {signature}", hint="rlctl pull --sign KEY signs")
    try:
        verifier.set_hashing_config(_hashing(signature)).verify(model, signature)
    except Exception as error:  # a damaged signature may make its parser raise anything; none of it is a success
        raise _bad(model, key, _why(error, model, signature)) from error
    if different := _differences(model, signature):  # its signer may have left files out
        raise _bad(model, key, different)


def _bad(model: Path, key: Path, why: str) -> BadSignature:
    return BadSignature(f"{model} is not as the owner of {key} signed it: {why}", hint="do not use it; get it anew")


def _library() -> Any:
    """Import the library that signs.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import model_signing
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is not installed here", hint='pip install "rlctl[signing]"') from error
    return model_signing


def _signer(key: Path) -> Any:
    signing = _library()
    try:
        return signing.signing.Config().use_elliptic_key_signer(private_key=key)
    except (ValueError, OSError, TypeError, AttributeError) as error:
        raise UsageError(f"{key} is no private key on an elliptic curve: {_words(error)}", hint=_CURVES) from error


def _hashing(signature: Path) -> Any:
    """Hashing of every file but the signature, whatever the signature itself excludes."""
    return _library().hashing.Config().set_ignored_paths(paths=[signature], ignore_git_paths=False)


def _why(error: Exception, model: Path, signature: Path) -> str:
    """Reason for a refused signature, in words."""
    if "Key mismatch" in str(error) or type(error).__name__ == "InvalidSignature":
        return "its signature is of another key, or was changed"
    try:
        return _differences(model, signature) or _words(error)
    except (ValueError, KeyError, TypeError, OSError):
        return f"{signature.name} is no signature"


def _differences(model: Path, signature: Path) -> str:
    """Files that differ from what was signed: `policy.json is changed, notes.txt is not signed`; "": none.

    Raises:
        ValueError, KeyError, TypeError, OSError: the signature or a file cannot be read.
    """
    envelope = json.loads(signature.read_bytes())["dsseEnvelope"]
    resources = json.loads(base64.b64decode(envelope["payload"]))["predicate"]["resources"]
    signed = {str(one["name"]): str(one["digest"]) for one in resources}
    files = {str(path.relative_to(model)): path for path in model.rglob("*") if not path.is_dir() and path != signature}
    if model.is_file():
        files = dict.fromkeys(signed, model)
    words = []
    for name in sorted({*files, *signed}):
        if name not in files or name not in signed:
            words.append(f"{name} is {'missing' if name in signed else 'not signed'}")
        elif hashlib.sha256(files[name].read_bytes()).hexdigest() != signed[name]:
            words.append(f"{model.name if model.is_file() else name} is changed")
    return ", ".join(words)


def _words(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).partition(" See http")[0].splitlines()[0][:200]
