"""Plan -> documents: the only module that knows the template language.

Templates hold values, not logic. Every interpolation is encoded for the format of its document by the environment
itself, so that no value, whatever it holds, can add a key, a line or a section.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jinja2

from rlctl.errors import Problem, SpecError
from rlctl.plan import Document, Plan, RolePlan
from rlctl.spec.base import ROLES
from rlctl.spec.layout import Layout

Format = Literal["yaml", "ini"]

_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@+=:,./{}-]+")
_VOLUME_ROLES = ("manager", "modelpool", "learner", "replay")


def templates() -> Path:
    """The folder of all templates: inside the installed package, or at the root of a working copy."""
    packaged = Path(__file__).parent / "templates"
    return packaged if packaged.is_dir() else Path(__file__).parents[1] / "templates"


def to_yaml(value: Any) -> str:
    """One YAML value on one line: JSON, with floats that YAML 1.1 reads as floats.

    Raises:
        ValueError: a number that is not finite, a key that is no string, half a surrogate pair, or no plain data.

    Example:
        1e-05 becomes 1.0e-05, which PyYAML reads as a number; JSON's own 1e-05 is a string to it.
    """
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return json.dumps(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"must be a finite number, got {value!r}")
        digits, exponent, power = repr(value).partition("e")
        return f"{digits if '.' in digits else digits + '.0'}{exponent}{power}"
    if isinstance(value, str):
        value.encode("utf-8")  # half a surrogate pair: UnicodeEncodeError is a ValueError
        return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise ValueError(f"keys must be strings, got {wrong[0]!r}")
        return "{" + ", ".join(f"{to_yaml(key)}: {to_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(to_yaml(item) for item in value) + "]"
    raise ValueError(f"must be plain data, got {type(value).__name__}")


def to_ini(value: Any) -> str:
    """One value of a supervisor configuration: text, a command line from a list, an environment from a mapping.

    `%` is doubled, because supervisor expands every value once. What its format cannot hold is refused.

    Raises:
        ValueError: a line break or another control character; a comment sign after a space outside a command; both
            kinds of quotes, or one at an end, in an environment variable; or no such data.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        text = value
    elif isinstance(value, (list, tuple)):
        text = " ".join(_word(_checked(word)) for word in value)
    elif isinstance(value, Mapping):
        text = ",".join(f"{_variable(name)}={_quoted(_checked(item))}" for name, item in value.items())
    else:
        raise ValueError(f"must be text, a whole number, a list or a mapping, got {type(value).__name__}")
    _checked(text)
    if text != text.strip() or re.search(r"(^|\s)[;#]", text):
        raise ValueError(f"supervisor cannot read space at an end, or ; or # after a space, in {text!r}")
    return text.replace("%", "%%")


def _checked(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, got {value!r}")
    if found := _CONTROL.search(value):
        raise ValueError(f"must not hold the control character {found[0]!r}: {value!r}")
    return value


def _word(word: str) -> str:
    """A word for shlex; a comment sign gets quotes of its own: configparser looks for ` ;` before shlex does."""
    if _PLAIN_WORD.fullmatch(word):
        return word
    quoted = word.replace("'", "'\"'\"'")
    return "'" + re.sub("[;#]", lambda sign: "''" + sign[0], quoted) + "'"


def _variable(name: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"must be the name of an environment variable, got {name!r}")
    return name


def _quoted(value: str) -> str:
    if value[:1] in {"'", '"'} or value[-1:] in {"'", '"'} or {"'", '"'} <= set(value):
        raise ValueError(f"supervisor cannot pass these quotes in an environment variable: {value!r}")
    return f"'{value}'" if '"' in value else f'"{value}"'


def environment(target: Format, loader: jinja2.BaseLoader | None = None) -> jinja2.Environment:
    """The template engine for one document format.

    Args:
        target: how interpolations are encoded.
        loader: where templates come from; None: our own folder.
    """
    encode = {"yaml": to_yaml, "ini": to_ini}[target]
    return jinja2.Environment(
        loader=loader or jinja2.FileSystemLoader(templates()),
        finalize=_encoder(encode),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
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


def _where(error: Exception, template: str) -> tuple[str, int]:
    """The innermost frame that is a template's: jinja2 gives these its names and lines."""
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


def documents(plan: Plan, *, layout: Layout, sockets: Path, python: str) -> list[Document]:
    """Everything that `rlctl up` puts below `run/` of a run on this machine, in a stable order.

    Args:
        plan: what runs.
        layout: folders of the run.
        sockets: its private folder for sockets; holds no character that needs quoting.
        python: the interpreter of all its processes.

    Raises:
        SpecError: a template's fault, or a value that a document cannot hold.
    """
    if plan.target != "local":
        raise SpecError([Problem(path="target", message=f"{plan.target} is not built yet; use local")])
    engine = environment("ini")
    common = {
        "root": str(layout.root),
        "run_folder": str(layout.run),
        "logs": str(layout.logs),
        "sockets": str(sockets),
    }
    watch = [python, "-m", "rlctl.backends.local.watch", "--root", str(layout.root), "--sockets", str(sockets)]

    def from_template(name: str, template: str, role: str, values: Mapping[str, Any]) -> Document:
        return Document(name, render(engine, template, {**common, **values}), role, f"templates/{template}")

    made = [
        from_template("supervisord.conf", "local/supervisord.conf.j2", "", {"run": plan.run}),
        from_template("watch.conf", "local/watch.conf.j2", "", {"command": watch}),
    ]
    for role in plan.roles:
        values = _program(plan, role, layout, sockets, python)
        made.append(
            from_template(f"programs/{role.role}.conf", "local/program.conf.j2", role.role, {"program": values})
        )
    made += [Document(run_file_name(role), _json(role.run_file), role.role) for role in plan.roles]
    made.append(Document("live.json", _json(plan.live), "manager"))
    return made


def run_file_name(role: RolePlan) -> str:
    """Another hash is another file, so a running process never sees its run file change."""
    return f"{role.role}-{role.hash}.json"


def _program(plan: Plan, role: RolePlan, layout: Layout, sockets: Path, python: str) -> dict[str, Any]:
    """What the section of one role holds; `--name` and `--probe` are the template's, because they differ by replica."""
    command = [python, "-m", "rlctl_agents", role.role, "--run-file", str(layout.run / run_file_name(role))]
    command += ["--manager", f"ipc://{sockets}/manager-0.rpc"]
    if role.role in _VOLUME_ROLES:
        command += ["--volume", str(layout.root)]
    if role.role == "manager":
        command += ["--addresses", f"ipc://{sockets}/{{role}}-{{index}}.{{channel}}"]
        command += ["--control", f"unix:{sockets}/manager-0.control", "--live", str(layout.run / "live.json")]
    variables = {"OMP_NUM_THREADS": str(role.threads), "PYTHONUNBUFFERED": "1"}
    if plan.code_path is not None:
        variables["PYTHONPATH"] = plan.code_path
    return {
        "command": command,
        "environment": variables,
        "directory": plan.code_path or str(layout.root),
        "priority": 100 + ROLES.index(role.role),
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
