"""Runner of the builders' programs: the only module here that starts any."""

from __future__ import annotations

import re
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rlctl.errors import BackendUnreachable
from rlctl.images.builders.base import Ended

KEPT_LINES: Final = 200
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Programs:
    """Runs programs as `Run` says. Both streams become one, in the order in which they were written, without colours.

    Args:
        environ: environment of the programs.
    """

    environ: Mapping[str, str]

    def __call__(self, argv: Sequence[str], say: Callable[[str], object] | None = None) -> Ended:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=dict(self.environ),
            )
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise BackendUnreachable(f"{argv[0]} cannot be started: {reason}") from error
        kept: deque[str] = deque(maxlen=KEPT_LINES)
        with process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    kept.append(_CONTROL.sub("", line.rstrip("\n")))
                    if say is not None:
                        say(kept[-1])
            except BaseException:
                process.terminate()  # Ctrl-C, or the reader of our output has gone; leaving the block waits for it
                raise
        return Ended(process.returncode, tuple(kept))
