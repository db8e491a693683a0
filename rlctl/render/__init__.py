"""Plan -> documents, for each target a module: the only package that knows the template language."""

from __future__ import annotations

from rlctl.render.encode import to_ini as to_ini
from rlctl.render.encode import to_yaml as to_yaml
from rlctl.render.engine import environment as environment
from rlctl.render.engine import render as render
from rlctl.render.engine import templates as templates
from rlctl.render.local import documents as documents
from rlctl.render.local import interpreter as interpreter
