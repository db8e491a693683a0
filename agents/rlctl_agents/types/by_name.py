"""Loading of the user's own classes and functions, which a spec names as `package.module:name`."""

from __future__ import annotations

import difflib
import importlib
from typing import Any


class LoadError(ValueError):
    """A name that cannot be loaded: says which part of it, and what to do. A failed import is the cause."""


class NoModule(LoadError):
    """There is no module of that name."""


def load(path: str) -> Any:
    """Import the object that `package.module:name` names.

    Raises:
        LoadError: no such module or name in it, or the module fails while it is imported.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(missing + "."):
            raise LoadError(f"{path}: {module_name} imports {missing}, which is not installed") from error
        raise NoModule(
            f"{path}: there is no module {missing}; is its folder named by code.path? As in `code: {{path: .}}`."
            " On a cluster the image has to hold it: rlctl image push SPEC --registry HOST/PATH. In Python: on sys.path"
        ) from error
    except Exception as error:  # a module may fail in any way while it is imported
        raise LoadError(f"{path}: importing {module_name}: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        close = difflib.get_close_matches(name, vars(module), n=1)
        raise LoadError(f"{path}: {module_name} has no {name}" + (f"; did you mean {close[0]}?" if close else ""))
    return getattr(module, name)
