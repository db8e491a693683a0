"""Memory between torso and heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Lstm(nn.Module):
    """One LSTM layer whose state is emptied wherever an episode begins.

    A cell rather than nn.LSTM: a reset may fall between any two rows of any stream. What the inputs contribute is one
    product over all rows; only the recurrent part runs row by row.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(inputs, 4 * width)
        self.from_hidden = nn.Linear(width, 4 * width, bias=False)
        for layer in (self.from_input, self.from_hidden):
            for gate in layer.weight.chunk(4):
                nn.init.orthogonal_(gate.data, 1.0)
        nn.init.zeros_(self.from_input.bias)
        nn.init.ones_(self.from_input.bias.data[width : 2 * width])  # the forget gate starts open
        self.features = width

    def initial_state(self, streams: int) -> dict[str, Tensor]:
        """Zeros: `core.h` and `core.c`, each [streams, width]."""
        return {name: torch.zeros(streams, self.features) for name in ("core.h", "core.c")}

    def forward(self, x: Tensor, first: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """T rows of B streams.

        Args:
            x: [T, B, inputs].
            first: [T, B] bool; the state before such a row is zero.
            state: before row 0, each [B, width].

        Returns:
            [T, B, width] and the state after the last row.

        Source: Hochreiter and Schmidhuber 1997, forget gates of Gers et al. 2000, their bias of Jozefowicz et al. 2015.
        """
        h, c = state["core.h"], state["core.c"]
        outputs = []
        keep_T = torch.logical_not(first).to(x.dtype).unsqueeze(-1)
        for gates, keep in zip(self.from_input(x).unbind(), keep_T.unbind(), strict=True):
            h, c = h * keep, c * keep
            i, f, g, o = (gates + functional.linear(h, self.from_hidden.weight)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs), {"core.h": h, "core.c": c}
