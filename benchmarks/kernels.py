"""Other kernels for the Nature CNN beside those that it has: one update of Pong's learner, one pass of its torso.

`python -m benchmarks.kernels WHAT VARIANT SECONDS` measures one of them in its process, with one compute thread and in
fp32 unless the variant says otherwise, and prints a JSON line.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks import limit, parts
from benchmarks.peers.contenders import OURS, changed
from benchmarks.shared import plots, store, tables
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row
from rlctl.spec.schema import Spec
from rlctl_agents.acting.bootstrap import make_algorithm, make_env
from rlctl_agents.models import torso
from rlctl_agents.training import micro_batches
from rlctl_agents.training.trainer import Trainer

TITLE = "Other kernels for images"
UPDATE, PASS = "update", "pass"
SHOWN = {UPDATE: "One update of the learner, 640 rows", PASS: "One pass of the torso without gradient, 32 rows"}
AS_IT_IS, FROZEN, ONNX = "as it is", "compiled by inductor, weights frozen and blocked", "onnxruntime"
ROWS: Final = 32

Switch = Callable[[], None]


def _no_blocks() -> None:
    torso.Pixels.in_blocks = lambda self, image: False  # type: ignore[method-assign]


def _channels_first() -> None:
    _no_blocks()
    torso.channels_last = lambda module: None
    torso.Pixels.to_float = lambda self, image: image.to(torso.computed_in(image.device))  # type: ignore[method-assign]


def _one_piece() -> None:
    micro_batches.MICRO_BATCH_BYTES = 1 << 40


def _small_pieces() -> None:
    micro_batches.MICRO_BATCH_BYTES //= 4


def _compiled_loss() -> None:
    update = Trainer.update

    def first(self: Trainer, batch: Any) -> Any:
        Trainer.update = update  # type: ignore[method-assign]
        self.compile(batch, ["inductor"])
        return self.update(batch)

    Trainer.update = first  # type: ignore[method-assign]


def _precision(name: str) -> None:
    parts.spec_of = partial(_spec, name)


def _spec(precision: str, task: str) -> Spec:
    return Spec.model_validate({"run": "part", **changed(OURS[task], {"model": {"precision": precision}})})


def _nothing() -> None:
    pass


VARIANTS: dict[str, dict[str, Switch]] = {
    UPDATE: {
        AS_IT_IS: _nothing,
        "pixels not in blocks of 4x4": _no_blocks,
        "channels first": _channels_first,
        "the batch in one piece": _one_piece,
        "pieces a quarter as large": _small_pieces,
        "compiled by inductor": _compiled_loss,
        "in bf16": partial(_precision, "bf16"),
    },
    PASS: {
        AS_IT_IS: _nothing,
        "pixels not in blocks of 4x4": _no_blocks,
        "channels first": _channels_first,
        "compiled by inductor": _nothing,
        FROZEN: _nothing,
        ONNX: _no_blocks,  # exporters know no view of bytes as words
    },
}
"""Variants of the update and of the pass, each with the switch that this process turns before it measures."""
AVX2, ALL = "AVX2 alone", "all that the processor has"
INSTRUCTIONS = {AVX2: {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}, ALL: {}}
"""Instructions that torch may use -> environment that sees to it. onnxruntime takes what there is."""


def measure(session: Session) -> None:
    cells = [
        (instructions, what, variant)
        for instructions in INSTRUCTIONS
        for what, variants in VARIANTS.items()
        for variant in variants
        if (instructions, variant) != (AVX2, ONNX)
    ]
    seconds = session.choose(0.2, 4.0, 8.0)
    for number, (instructions, what, variant) in session.rounds(cells, session.choose(1, 2, 5)):
        keys = {"instructions": instructions, "what": what, "variant": variant, "round": number}
        session.cell(keys, partial(_alone, INSTRUCTIONS[instructions], what, variant, seconds))


def _alone(environment: Mapping[str, str], what: str, variant: str, seconds: float) -> dict[str, Any]:
    words = (what, variant, str(seconds))
    return limit.rates(limit.in_a_process("benchmarks.kernels", *words, environment=environment))


def table(rows: list[Row]) -> list[str]:
    lines: list[str] = []
    for what, variants in VARIANTS.items():
        body = []
        for variant in variants:
            cells = []
            for instructions in INSTRUCTIONS:
                found = store.where(rows, what=what, instructions=instructions)
                one = store.where(found, variant=variant)
                cells += [tables.measured(one, "steps_per_cpu_s"), _beside(found, variant)]
            body.append([variant, *cells])
        head = [
            word for instructions in INSTRUCTIONS for word in (f"rows per CPU s, {instructions}", "beside as it is")
        ]
        lines += [f"**{SHOWN[what]}, Pong.**", "", *tables.table(["", *head], body), ""]
    failed = {(row["what"], row["variant"], row["instructions"]): row["failed"] for row in rows if row.get("failed")}
    told = "; ".join(f"{', '.join(cell)}: {why}" for cell, why in failed.items())
    return [
        *lines,
        *([f"Failed: {told}.", ""] if failed else []),
        "Beside as it is: the ratio of rows per CPU second in the same round. What is computed is the same but for "
        "rounding, in fp32 but where it says bf16, which `model.precision: auto` takes where the processor has it. "
        "Bytes have no gradient, so that of the frames is never made. Each pass is compared with the torso's own "
        "before it is measured, and fails if it differs (cells.csv says so); compiled updates are not compared.",
    ]


def _beside(rows: list[Row], variant: str) -> str:
    """Median, smallest and largest ratio to the rows as they are, of the rounds that have both; "" without any."""
    ratios = []
    for number in store.distinct(rows, "round"):
        one, whole = (
            store.kept(store.where(rows, variant=name, round=number), "steps_per_cpu_s") for name in (variant, AS_IT_IS)
        )
        if one and whole and variant != AS_IT_IS:
            ratios.append(one[0] / whole[0])
    if not ratios:
        return ""
    found = spread(ratios)
    return f"{found.median:.2f} ({found.low:.2f}-{found.high:.2f}; n {found.repeats})"


def plot(rows: list[Row], path: Path) -> None:
    made, axes = plots.figure(len(VARIANTS) * len(INSTRUCTIONS))
    panels = [(what, instructions) for what in VARIANTS for instructions in INSTRUCTIONS]
    for one, (what, instructions) in zip(axes, panels, strict=False):
        found = store.where(rows, what=what, instructions=instructions)
        values = {name: store.kept(store.where(found, variant=name), "steps_per_cpu_s") for name in VARIANTS[what]}
        shown = {name: spread(some) for name, some in values.items() if some}
        plots.bars(one, shown, title=f"{SHOWN[what]}, {instructions}", unit="rows per CPU second")
    plots.save(made, path)


def _pass(variant: str, seconds: float) -> parts.Part:
    spec = _spec("fp32", "pong")
    env = make_env(spec, ROWS)
    net = make_algorithm(spec, "main", env.spaces).net.eval()
    frames = torch.as_tensor(env.reset(list(range(ROWS))).obs["obs"])
    env.close()
    [cnn] = [one for one in net.modules() if isinstance(one, torso.NatureCnn)]
    with torch.no_grad():
        run = _made(variant, cnn, frames)
        assert torch.allclose(run(), cnn(frames), rtol=1e-3, atol=1e-4)

        def step() -> int:
            run()
            return ROWS

        return parts.repeat(step, seconds)


def _made(variant: str, cnn: torso.NatureCnn, frames: Tensor) -> Callable[[], Tensor]:
    if variant == ONNX:
        return _by_onnxruntime(cnn, frames)
    if variant == FROZEN:
        torch._inductor.config.freezing = True
    function = torch.compile(cnn) if "inductor" in variant else cnn
    return lambda: function(frames)


def _by_onnxruntime(cnn: torso.NatureCnn, frames: Tensor) -> Callable[[], Tensor]:
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "torso.onnx")
        torch.onnx.export(cnn, (frames,), file, dynamo=True, verbose=False, input_names=["obs"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda: torch.from_numpy(session.run(None, {"obs": frames.numpy()})[0])


def main(what: str, variant: str, seconds: float) -> None:
    torch.set_num_threads(1)
    _precision("fp32")
    VARIANTS[what][variant]()
    found = parts.learner("pong", seconds) if what == UPDATE else _pass(variant, seconds)
    print(json.dumps(found._asdict()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
