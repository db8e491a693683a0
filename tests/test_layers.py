"""Reads every import of the project and fails on an upward arrow or a wrong door (docs/architecture.md)."""

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.house import PACKAGES, Ceiling, figures, headless

ROOT = Path(__file__).parent.parent

# a module may import what stands above it in its own column; modules of one row do not import each other
LAYERS = [
    ["rlctl.errors", "rlctl.waiting", "rlctl.statistics"],
    ["rlctl.image_names"],
    ["rlctl.spec", "rlctl.signing"],
    ["rlctl.plan", "rlctl.changes"],
    ["rlctl.render", "rlctl.backends", "rlctl.images", "rlctl.probe"],
    ["rlctl.backends.kubernetes.api"],
    ["rlctl.backends.kubernetes.run_state"],
    ["rlctl.backends.kubernetes.diagnose"],
    ["rlctl.backends.kubernetes.access", "rlctl.backends.kubernetes.preflight"],
    ["rlctl.backends.kubernetes.apply"],
    ["rlctl.backends.local.names", "rlctl.backends.local.proc"],
    ["rlctl.backends.local.state"],
    ["rlctl.backends.local.process"],
    ["rlctl.backends.local.access"],
    ["rlctl.backends.local.apply"],
    ["rlctl.backends.kubernetes", "rlctl.backends.local"],
    ["rlctl_ci"],
    *(
        [f"rlctl.cli.{name}" for name in row]
        for row in (
            ["context", "text"],
            ["options"],
            ["run"],
            ["display", "models"],
            ["apply"],
            ["experiments"],
            ["verbs", "ci"],
            ["app"],
            ["main"],
        )
    ),
    ["rlctl.__main__"],
    ["rlctl_agents.types"],
    ["rlctl_agents.wire", "rlctl_agents.envs", "rlctl_agents.models", "rlctl_agents.ops", "rlctl_agents.checkpoint"],
    ["rlctl_agents.algorithms"],
    ["rlctl_agents.runtime"],
    ["rlctl_agents.experience", "rlctl_agents.weights"],
    ["rlctl_agents.training", "rlctl_agents.acting"],
    ["rlctl_agents.policies"],
    ["rlctl_agents.debugging"],
    ["rlctl_agents.repro"],
    *(
        [f"rlctl_agents.manager.{name}" for name in row]
        for row in (
            ["timing", "events", "episodes", "settings"],
            ["state_store"],
            ["accounting"],
            ["membership"],
            ["checkpoints"],
            ["evaluation"],
            ["lifecycle"],
            ["status"],
            ["web", "logs", "trackers"],
            ["coordinator"],
            ["loop"],
        )
    ),
    ["rlctl_agents.roles"],
    ["rlctl_agents.__main__"],
]
OUTSIDE_THE_MANAGER = (
    "rlctl_agents.envs",
    "rlctl_agents.models",
    "rlctl_agents.ops",
    "rlctl_agents.algorithms",
    "rlctl_agents.experience",
    "rlctl_agents.weights",
    "rlctl_agents.training",
    "rlctl_agents.acting",
    "rlctl_agents.debugging",
    "rlctl_agents.repro",
)
"""Modules that the manager does without: it imports no torch, and nothing that knows what a tensor is."""
AGENTS_FROM_RLCTL = ("rlctl.spec", "rlctl.errors", "rlctl.signing", "rlctl.statistics")
NOT_FOR_ALGORITHMS = ("rlctl_agents.wire", "rlctl_agents.envs", "rlctl_agents.checkpoint")
TARGETS = ("rlctl.backends.kubernetes", "rlctl.backends.local")
DOORS = {
    "jinja2": ["rlctl.render", "rlctl_agents.manager.web.rendering", "rlctl_ci.web.html"],
    "typer": ["rlctl.cli"],
    "click": ["rlctl.cli"],
    "rich": ["rlctl.cli"],
    "yaml": ["rlctl.spec", "rlctl.cli", "rlctl.render", "rlctl.backends.kubernetes"],
    "supervisor": ["rlctl.backends.local"],
    "psutil": ["rlctl.backends.local"],
    "subprocess": [
        "rlctl.backends.local",
        "rlctl.images.builders.programs",
        "rlctl.probe",
        "rlctl.cli.models.player",
        "rlctl_agents.manager.logs.log_queries",
        "rlctl_ci.sandbox.programs",
    ],
    "optuna": ["rlctl.cli.experiments.search"],
    "sqlalchemy": ["rlctl.cli.experiments.search"],
    "matplotlib": ["rlctl.cli.experiments.plot"],
    "sqlite3": ["rlctl_ci.store"],
    "model_signing": ["rlctl.signing"],
    "starlette": ["rlctl_ci.web"],
    "uvicorn": ["rlctl_ci.web.serve"],
    "kubernetes": ["rlctl.backends.kubernetes.api.client", "rlctl.backends.kubernetes.api.quantity"],
    "cryptography": ["rlctl.backends.kubernetes.run_state.keys"],
    "zmq": ["rlctl_agents.wire"],
    "zstandard": ["rlctl_agents.wire"],
    "gymnasium": ["rlctl_agents.envs"],
    "ale_py": ["rlctl_agents.envs.ale"],
    "tensorboard": ["rlctl_agents.manager.trackers.tensorboard", "rlctl_agents.roles.tensorboard_server"],
    "wandb": ["rlctl_agents.manager.trackers.wandb"],
    "mlflow": ["rlctl_agents.manager.trackers.mlflow"],
    "torch": [
        "rlctl_agents.models",
        "rlctl_agents.ops",
        "rlctl_agents.algorithms",
        "rlctl_agents.experience",
        "rlctl_agents.weights",
        "rlctl_agents.training",
        "rlctl_agents.acting",
        "rlctl_agents.policies",
        "rlctl_agents.debugging",
        "rlctl_agents.roles",
    ],
    "onnx": [],
    "onnxscript": [],
    "onnxruntime": ["rlctl_agents.policies.export"],
    "safetensors": ["rlctl_agents.models", "rlctl_agents.checkpoint"],
    "signal": [
        "rlctl.cli",
        "rlctl.backends.local",
        "rlctl.probe",
        "rlctl_ci.sandbox.keeper",
        "rlctl_agents.runtime.process",
        "rlctl_agents.roles",
        "rlctl_agents.__main__",
    ],
    "pickle": [],
    "dill": [],
    "cloudpickle": [],
}


def module_name(path: Path) -> str:
    base = next((folder for folder in (ROOT / "agents", ROOT / "ci") if path.is_relative_to(folder)), ROOT)
    relative = path.relative_to(base)
    return ".".join(relative.with_suffix("").parts).removesuffix(".__init__")


SOURCES = {
    module_name(path): path
    for folder in ("rlctl", "agents/rlctl_agents", "ci/rlctl_ci")
    for path in (ROOT / folder).rglob("*.py")
}


@cache
def tree(module: str) -> list[ast.AST]:
    return [*ast.walk(ast.parse(SOURCES[module].read_text()))]


def imports(module: str) -> Iterator[tuple[int, str]]:
    for node in tree(module):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import"
            assert node.module
            yield from (
                (
                    node.lineno,
                    f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in SOURCES else node.module,
                )
                for alias in node.names
            )


def layer(module: str) -> tuple[int, str] | None:
    """Depth of the longest prefix that a row names, and that prefix."""
    found = [
        (depth, prefix)
        for depth, row in enumerate(LAYERS)
        for prefix in row
        if module == prefix or module.startswith(prefix + ".")
    ]
    return max(found, key=lambda one: len(one[1]), default=None)


def fault(module: str, imported: str) -> str | None:
    doors = DOORS.get(imported.split(".")[0])
    if doors is not None and not any(module == door or module.startswith(door + ".") for door in doors):
        return f"only {doors or 'nobody'} may"
    if any(module.startswith(one) and imported.startswith(two) for one in TARGETS for two in TARGETS if one != two):
        return "a target that is broken must not break another"
    here, there = layer(module), layer(imported)
    if here is None or there is None or here[1] == there[1]:
        return None
    if module.startswith("rlctl_agents.") and imported.startswith("rlctl."):
        return None if imported.startswith(AGENTS_FROM_RLCTL) else f"agents know only {', '.join(AGENTS_FROM_RLCTL)}"
    if module.startswith(("rlctl.", "rlctl_ci.")) and imported.startswith("rlctl_agents"):
        return "neither the command line nor the webhook service imports the agents"
    if module.startswith("rlctl_agents") and imported.startswith("rlctl_ci"):
        return "the agents do not know the webhook service"
    if here[0] <= there[0]:
        return "an arrow upward or sideways"
    if module.startswith("rlctl_agents.manager") and imported.startswith(OUTSIDE_THE_MANAGER):
        return "the manager knows nothing of the training side"
    if module.startswith("rlctl_agents.algorithms") and imported.startswith(NOT_FOR_ALGORITHMS):
        return "algorithms know only types, models and ops"
    return None


def test_imports_point_downward_and_through_the_right_door() -> None:
    faults = [
        f"{module}:{line} imports {name}: {why}"
        for module in sorted(SOURCES)
        for line, name in imports(module)
        if (why := fault(module, name))
    ]
    assert not faults, "\n".join(faults)


def test_the_layer_check_sees_an_upward_arrow_and_a_wrong_door() -> None:
    assert fault("rlctl.spec.load", "rlctl.cli.main")
    assert fault("rlctl_agents.wire.rpc.client", "rlctl_agents.models.policy")
    assert fault("rlctl.cli.main", "zmq")
    assert fault("rlctl.backends.kubernetes.access.logs", "rlctl.backends.local.access.logs")
    assert fault("rlctl_agents.manager.status.report", "rlctl_agents.manager.coordinator")
    assert fault("rlctl_agents.manager.coordinator", "rlctl_agents.training.trainer")
    assert fault("rlctl_agents.runtime.process", "torch")
    assert fault("rlctl_agents.roles.manager", "pickle")
    assert fault("rlctl_ci.core.build_attempt", "rlctl.cli.verbs.up")
    assert fault("rlctl.backends.kubernetes.run_state.desired_state", "rlctl.backends.kubernetes.apply.survey")
    assert fault("rlctl.cli.experiments.scheduler", "rlctl.cli.verbs.up")
    assert fault("rlctl.backends.base", "rlctl_ci.core.build_attempt")
    assert fault("rlctl_ci.core.build_attempt", "subprocess")
    assert not fault("rlctl_agents.roles.learner", "rlctl_agents.algorithms.base")


def test_nothing_unpickles_or_starts_a_shell() -> None:
    for module, node in ((name, node) for name in sorted(SOURCES) for node in tree(name)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in {"torch.load", "eval", "exec", "os.system", "os.popen"}, (
                f"{module}:{node.lineno}: {name}"
            )
            assert not any(
                keyword.arg in {"shell", "allow_pickle"} and ast.unparse(keyword.value) == "True"
                for keyword in node.keywords
            ), f"{module}:{node.lineno}: {ast.unparse(node)[:80]}"
            assert not name.endswith(("recv_pyobj", "send_pyobj")), f"{module}:{node.lineno}: {name}"


@pytest.mark.parametrize(("ceiling", "measure"), figures().items(), ids=lambda value: str(getattr(value, "what", "")))
def test_the_house_stays_below_its_ceilings(ceiling: Ceiling, measure: Callable[[], int]) -> None:
    today = measure()
    assert today <= ceiling.most, f"{ceiling.what}: {today:,}; `python -m tests.house` shows what counts"


def test_every_docstring_begins_with_a_line_that_says_what_it_is() -> None:
    assert headless() == 0


@pytest.mark.parametrize("package", PACKAGES)
def test_no_constant_of_a_module_is_set_twice(package: str) -> None:
    """The second one would change what the first is for."""
    for path in sorted((ROOT / package).rglob("*.py")):
        seen = set[str]()
        for node in ast.parse(path.read_text()).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(target, ast.Name):
                assert target.id not in seen, f"{path}:{node.lineno}: {target.id}"
                seen.add(target.id)
