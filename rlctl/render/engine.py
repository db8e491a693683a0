"""Template engine of documents.

Templates hold values, not logic. Every interpolation is encoded for the format of its document by the environment
itself, so that no value, whatever it holds, can add a key, a line or a section.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jinja2
from jinja2.bccache import Bucket
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rlctl.errors import Problem, SpecError
from rlctl.render.encode import to_ini, to_yaml

Format = Literal["yaml", "ini"]


def templates() -> Path:
    """The folder of all templates: inside the installed package, or at the root of a working copy."""
    package = Path(__file__).parents[1]
    packaged = package / "templates"
    return packaged if packaged.is_dir() else package.parent / "templates"


class _Compiled(jinja2.BytecodeCache):
    """Templates compiled once a process: every rendering has an engine of its own, with its own folders. An entry
    counts for the very same source only.
    """

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._known:
            bucket.bytecode_from_string(self._known[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._known[bucket.key] = bucket.bytecode_to_string()


# one for each format: what is constant in a template is encoded when it is compiled
_COMPILED = {"yaml": _Compiled(), "ini": _Compiled()}


def environment(target: Format, loader: jinja2.BaseLoader | None = None) -> jinja2.Environment:
    """The template engine for one document format.

    Args:
        target: how interpolations are encoded.
        loader: where templates come from; None: our own folder.
    """
    encode = {"yaml": to_yaml, "ini": to_ini}[target]
    return ImmutableSandboxedEnvironment(  # a template may be a user's own
        loader=loader or jinja2.FileSystemLoader(templates()),
        finalize=_encoder(encode),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_COMPILED[target],
    )


def _encoder(encode: Callable[[Any], str]) -> Callable[[Any], str]:
    def finalize(value: Any) -> str:
        return str(value) if isinstance(value, jinja2.Undefined) else encode(value)  # str() of the former raises

    return finalize


def render(engine: jinja2.Environment, template: str, values: Mapping[str, Any]) -> str:
    """One document.

    Raises:
        SpecError: the template is missing or wrong, a name is missing, or a value cannot be written in this format;
            with template and line.
    """
    try:
        return engine.get_template(template).render(values)
    except jinja2.TemplateNotFound as error:
        raise _fault(template, 0, f"no such template: {error}") from error
    except jinja2.TemplateSyntaxError as error:
        raise _fault(error.name or template, error.lineno, error.message or "syntax error") from error
    except (jinja2.TemplateError, ValueError, TypeError) as error:
        file, line = _where(error, template)
        raise _fault(file, line, str(error)) from error


def source(engine: jinja2.Environment, template: str) -> str:
    """Path of a template that was rendered: relative when it is ours."""
    path = engine.get_template(template).filename
    ours = path is None or Path(path).is_relative_to(templates())
    return f"templates/{template}" if ours else str(path)


def _where(error: Exception, template: str) -> tuple[str, int]:
    """File and line of the innermost frame that is a template's: jinja2 gives these its names and lines."""
    file, line, trace = template, 0, error.__traceback__
    while trace is not None:
        if "__jinja_exception__" in trace.tb_frame.f_globals:
            name, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
            file = template if name.startswith("<") else name  # <template>: it came from no file
        trace = trace.tb_next
    return file, line


def _fault(file: str, line: int, message: str) -> SpecError:
    problem = Problem(path="", message=f"template: {message}", file=file, line=line, column=1 if line else 0)
    return SpecError([problem], hint="Templates lie in " + str(templates()))
