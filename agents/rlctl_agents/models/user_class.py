"""Classes named in a spec as `package.module:Class`."""

from __future__ import annotations

import difflib
import importlib
from typing import Any


class UserClassError(ValueError):
    """The name leads to nothing usable: says which part of it, and what to do."""


def load(path: str) -> Any:
    """What `package.module:Class` names.

    Raises:
        UserClassError: no such module or name in it, or the module fails while it is imported.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(missing + "."):
            raise UserClassError(f"{path}: {module_name} imports {missing}, which is not installed") from error
        raise UserClassError(f"{path}: no module {missing}; is its folder named by code.path?") from error
    except Exception as error:  # a module may fail in any way while it is imported
        raise UserClassError(f"{path}: importing {module_name}: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        close = difflib.get_close_matches(name, vars(module), n=1)
        raise UserClassError(f"{path}: {module_name} has no {name}" + (f"; did you mean {close[0]}?" if close else ""))
    return getattr(module, name)
