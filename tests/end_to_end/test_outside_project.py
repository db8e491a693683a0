"""A project outside this repository brings its own environment; tests/training/test_outside.py its own algorithm."""

from pathlib import Path

import pytest

from tests.end_to_end.conftest import Cli

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def test_a_fault_in_the_users_own_module_is_told_in_words(cli: Cli) -> None:
    (cli.folder / "broken.py").write_text("import no_such_package_of_mine\n")
    spec = cli.spec("broken", env={"id": "broken:Env"}, code={"path": "."}, stop={"agent_steps": 1000})
    refused = cli("up", spec, exit_code=5)
    assert "broken imports no_such_package_of_mine, which is not installed (broken.py, line 1)" in refused.stderr


def test_an_environment_that_fails_in_a_role_alone_fails_the_run_with_its_reason(cli: Cli) -> None:
    (cli.folder / "shy.py").write_text(
        "import os\n\n\ndef Env():\n"
        "    if 'SUPERVISOR_PROCESS_NAME' in os.environ:\n        raise RuntimeError('no licence left')\n"
        "    import gymnasium\n    return gymnasium.make('CartPole-v1')\n"
    )
    spec = cli.spec("shy", env={"id": "shy:Env"}, code={"path": "."}, stop={"agent_steps": 1000})
    failed = cli("up", spec, exit_code=7, timeout_s=240)
    assert "no licence left" in failed.stdout + failed.stderr
    assert "Traceback" not in failed.stdout + failed.stderr


def test_the_scaffold_trains_from_a_wheel_in_an_empty_folder(cli: Cli, tmp_path: Path) -> None:
    import subprocess
    import sys

    repository = Path(__file__).parents[2]
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", repository],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = (tmp_path / "dist").glob("rlctl-*.whl")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)],
        check=True, capture_output=True,
    )  # fmt: skip
    empty = tmp_path / "empty"
    empty.mkdir()
    packaged = Cli(empty, {**cli.env, "PYTHONPATH": str(site)})
    where = "import rlctl, rlctl_agents; print(rlctl.__file__, rlctl_agents.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where], cwd=empty, env=packaged.env, text=True, capture_output=True, check=True
    ).stdout
    assert found.count(str(site)) == 2, f"the wheel is not what runs: {found}"

    packaged("init", "hello")
    Cli(empty / "hello", packaged.env)("up", "spec.yaml", "--set", "stop.agent_steps=2000", timeout_s=200)
    assert packaged.status("hello")["phase"] == "finished"
