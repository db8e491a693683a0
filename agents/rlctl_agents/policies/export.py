"""`python -m rlctl_agents export`: writes a stored policy as a graph, and checks that the file acts as the policy.

The request comes on stdin, one JSON object:

    {"folder": "model", "file": "there/policy.onnx", "origin": {"run": "cartpole", "model": "best", ...}}

The reply is a line of JSON: `inputs` and `outputs` of the graph, and `checked`, which is null where onnxruntime is not
installed. The file describes itself in an entry `policy.json`: among the metadata of an ONNX model, the extra files of
a .pt2 archive.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec
import numpy as np
import torch
from torch.export import Dim, ExportedProgram

from rlctl_agents.algorithms.base import ActInputs, Algorithm, Tensors
from rlctl_agents.checkpoint.policy import PolicyFile
from rlctl_agents.policies.answering import NoModel, answer, answering, stored_model, writing
from rlctl_agents.policies.graph import (
    FIRST,
    LAST,
    LAST_REWARD,
    LEGAL,
    NEXT_STATE,
    STATE,
    graph_of,
    network_of,
    tried,
)
from rlctl_agents.policies.loaded import DESCRIPTION

BATCH = "batch"
"""Name of the first axis of all inputs and outputs."""
ROWS = (1, 3, 64)
"""Batch sizes with which a file is checked."""
NOT_LEGAL = -1e30
"""Logits below this belong to options that are not legal."""
TOLERANCE = 1e-5
"""Largest difference of the file from the policy, in units of the largest number of an output, or of 1."""
Ends = dict[str, list[dict[str, Any]]]
Function = Callable[[Tensors], Mapping[str, Any]]


def main(_: Sequence[str] = ()) -> int:
    """Run the command; returns its exit code."""
    return answering(_export)


def _export(question: Mapping[str, Any], answers: TextIO) -> None:
    described, algorithm = stored_model(question)
    answer(answers, export(described, algorithm, Path(question["file"]), question["origin"]))


@torch.no_grad()
def export(described: PolicyFile, algorithm: Algorithm, file: Path, origin: Mapping[str, Any]) -> dict[str, Any]:
    """Write a policy, and check the file.

    Args:
        file: new; its suffix says which format.
        origin: of the policy, for its description.

    Returns:
        `inputs` and `outputs`, each a list of name, dtype and shape; `checked`.

    Raises:
        NoModel: it cannot be exported, or the file acts differently from the policy.
    """
    net = network_of(algorithm)
    rng = np.random.default_rng(0)
    example = tried(described.spaces, net, 2, rng)  # of one, torch would make a constant
    try:
        graph = graph_of(algorithm, described.spaces, described.steps, exported=True)
        ends: Ends = {"inputs": _ends(example), "outputs": _ends(graph(example))}
        about = {**msgspec.to_builtins(described), "origin": dict(origin), **ends, "sampling": graph.sampling()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own calls
            program = torch.export.export(graph, (example,), dynamic_shapes=(_axes(example, Dim(BATCH)),))
            write = _onnx if file.suffix == ".onnx" else _pt2
            by, function = write(program, ends, file, json.dumps(about))
    except (OSError, NoModel):
        raise
    except Exception as error:  # a network of the user's own may do anything
        why = (str(error).strip().splitlines() or [""])[0][:300]
        raise NoModel(f"torch cannot export this network: {type(error).__name__}: {why}") from error
    if function is None:
        return {**ends, "checked": None}
    worst = max(difference(function, algorithm, described, tried(described.spaces, net, rows, rng)) for rows in ROWS)
    return {**ends, "checked": {"by": by, "observations": sum(ROWS), "difference": worst}}


def _pt2(program: ExportedProgram, ends: Ends, file: Path, about: str) -> tuple[str, Function]:
    made = io.BytesIO()  # torch does not say why it cannot write a file
    torch.export.save(program, made, extra_files={DESCRIPTION: about})
    with writing(file):
        file.write_bytes(made.getvalue())
    return f"torch {torch.__version__}", torch.export.load(file).module()


def _onnx(program: ExportedProgram, ends: Ends, file: Path, about: str) -> tuple[str, Function | None]:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of packages that it does without
    names, outputs = ([str(one["name"]) for one in ends[side]] for side in ("inputs", "outputs"))
    made = torch.onnx.export(
        program, dynamo=True, verbose=False, input_names=names, output_names=outputs,
        dynamic_shapes=(_axes(names, BATCH),),
    )  # fmt: skip
    assert made is not None
    made.model.metadata_props[DESCRIPTION] = about
    with writing(file):
        made.save(file)
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return "", None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(inputs: Tensors) -> dict[str, Any]:
        return dict(zip(outputs, session.run(outputs, {name: inputs[name].numpy() for name in names}), strict=True))

    return f"onnxruntime {onnxruntime.__version__}", run


@torch.no_grad()
def difference(function: Function, algorithm: Algorithm, described: PolicyFile, inputs: Tensors) -> float:
    """Largest difference between a file and its policy. Real numbers: in units of the largest of their output, or of 1.
    Choices: by how much their log-probability, or value, is below that of the best, so that ties count as equal.

    Raises:
        NoModel: it is above `TOLERANCE`.
    """
    found = {name: torch.as_tensor(value) for name, value in function(inputs).items()}
    expected = _expected(algorithm, described, inputs)
    graph, worst = graph_of(algorithm, described.spaces, described.steps), 0.0
    for name, values in expected.items():
        one = found[name]
        if (one.dtype, one.shape) != (values.dtype, values.shape):
            raise NoModel(f"the file gives {name} as {one.dtype} {list(one.shape)}, the policy as {values.dtype}")
        if values.is_floating_point():
            real = values > NOT_LEGAL  # the others are alike, or very far apart
            scale = values.where(real, 0.0).abs().max().clamp(min=1.0)
            off = float(((one - values).abs() / scale).max())
        else:
            off = graph.shortfall(name, one, expected)
        if not off <= TOLERANCE:
            raise NoModel(f"the file gives another {name} than the policy: off by {off:.3g}, at most {TOLERANCE:g}")
        worst = max(worst, off)
    return worst


def _expected(algorithm: Algorithm, described: PolicyFile, inputs: Tensors) -> Tensors:
    """Outputs of the policy itself: action and next state of `act`, parameters of the network as it is."""
    count = len(next(iter(inputs.values())))
    graph = graph_of(algorithm, described.spaces, described.steps)
    state = {name: inputs[STATE + name] for name in graph.memory}
    first, noise = inputs.get(FIRST, torch.zeros(count, dtype=torch.bool)), torch.zeros(count, algorithm.noise_width)
    obs = {name: inputs[name] for name in graph.observed}
    last = {name.removeprefix(LAST): one for name, one in inputs.items() if name.startswith(f"{LAST}action")}
    act = algorithm.act(
        ActInputs(
            obs, first, state, noise, inputs.get(LEGAL), True, described.steps, last or None, inputs.get(LAST_REWARD)
        )
    )
    after = {NEXT_STATE + name: values for name, values in act.state.items()}
    return {**graph(inputs), **graph.clipped(act.action), **after}


def _axes(names: Iterable[str], batch: Any) -> dict[str, dict[int, Any]]:
    """Dynamic shapes: the first axis of every input."""
    return {name: {0: batch} for name in names}


def _ends(tensors: Tensors) -> list[dict[str, Any]]:
    return [
        {"name": name, "dtype": str(one.dtype).removeprefix("torch."), "shape": [BATCH, *one.shape[1:]]}
        for name, one in tensors.items()
    ]
