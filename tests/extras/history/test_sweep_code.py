"""The code that a sweep's jobs have run is compared when it ends, and is that of its begin where that is chosen."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkouts import checkout
from commands import environment

from lockstep.extras.history.sweep_end import compare_code

COMMIT, CHANGES = "commit " + 40 * "a" + "\n", "\ndiff --git a/net.py b/net.py\n"


def test_jobs_that_have_run_other_code_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("lr=1", "lr=2", "lr=3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
        (tmp_path / name / "code.patch").write_text(COMMIT)
    compare_code(tmp_path)
    assert capsys.readouterr().out == ""
    (tmp_path / "lr=2" / "code.2.patch").write_text(COMMIT + CHANGES)
    (tmp_path / "lr=3" / "code.patch").write_text(COMMIT + CHANGES)
    compare_code(tmp_path)
    head, same, other = capsys.readouterr().out.strip().splitlines()
    assert head.startswith("The jobs have not run the same code")
    assert same == "  aaaaaaaaaaaa: lr=1, lr=2"
    assert other.startswith("  aaaaaaaaaaaa+")
    assert other.endswith(": lr=2, lr=3")


def sweep(copy: Path, *arguments: str, program: str = "train.py") -> subprocess.CompletedProcess[str]:
    own = environment(PYTHONPATH=str(copy / "src"))
    command = [sys.executable, program, *arguments]
    return subprocess.run(command, cwd=copy, env=own, capture_output=True, text=True, timeout=200, check=False)


def trained(copy: Path, name: str) -> dict[str, list[str]]:
    """The files with code of each job of a sweep."""
    runs = sorted((copy / "logs" / name).glob("*/run.json"))
    return {run.parent.name[:6]: [path.read_text() for path in sorted(run.parent.glob("code*.patch"))] for run in runs}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return checkout(tmp_path / "copy")


OPTIONS = ("-m", "trainer=cpu", "debug=fast", "model=mlp")
SNAPSHOT = "hydra.callbacks.code.snapshot"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_all_jobs_run_the_code_that_the_sweep_began_with(copy: Path) -> None:
    """The net is edited before the sweep is resumed: without a snapshot both jobs would fail."""
    net = copy / "src" / "lockstep" / "nets" / "mlp.py"
    original = net.read_text()
    net.write_text(f"{original}\nif __import__('os').path.exists('full'):\n    raise OSError('first code')\n")
    (copy / "src" / "lockstep" / "nets" / "new.py").write_text("# is not tracked\n")
    (copy / "full").touch()
    command = (*OPTIONS, "seed=1,2", "hydra.sweep.dir=logs/sweep")
    first = sweep(copy, *command, f"{SNAPSHOT}=true")
    assert (first.returncode, "2 failed" in first.stdout) == (1, True), first.stdout + first.stderr
    (copy / "full").unlink()
    net.write_text("raise OSError('edited')\n")
    refused = sweep(copy, "resume", "logs/sweep", program="scripts/sweep.py")
    assert (refused.returncode, f"--allow {SNAPSHOT}" in refused.stderr) == (2, True), refused.stderr
    resumed = sweep(copy, "resume", "logs/sweep", "--allow", SNAPSHOT, program="scripts/sweep.py")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "have not run the same code" not in resumed.stdout
    jobs = trained(copy, "sweep")
    assert [*jobs] == ["seed=1", "seed=2"]
    (code,) = jobs["seed=1"]
    assert jobs["seed=2"] == [code] == [(copy / "logs" / "sweep" / "code.patch").read_text()]
    assert "first code" in code
    assert "is not tracked" in code


def test_a_sweep_that_is_refused_leaves_no_snapshot(copy: Path) -> None:
    done = sweep(copy, *OPTIONS, "model.net.hidden=x,y", "hydra.sweep.dir=logs/sweep", f"{SNAPSHOT}=true")
    assert (done.returncode, "model.net.hidden=x" in done.stderr) == (2, True), done.stderr
    assert [path.name for path in (copy / "logs").iterdir()] == [".gitkeep"]
    worktrees = subprocess.run(["git", "worktree", "list"], cwd=copy, capture_output=True, text=True, check=True).stdout
    assert len(worktrees.splitlines()) == 1


@pytest.mark.parametrize("is_said_by", ["the directory", "the project"])
def test_code_in_a_strangers_sweep_is_run_with_permission_alone(is_said_by: str, copy: Path) -> None:
    """Its manifest asks for the snapshot, or the project always wants one."""
    config, directory = copy / "conf" / "hydra" / "default.yaml", copy / "logs" / "sweep"
    chosen = [f"{SNAPSHOT}=true"] if is_said_by == "the directory" else []
    if not chosen:
        config.write_text(config.read_text().replace("snapshot: false", "snapshot: true"))
    (directory / "code").mkdir(parents=True)
    (directory / "code" / "train.py").write_text(f"open({str(copy / 'ran')!r}, 'w')\n")
    (directory / "code.patch").write_text(COMMIT)
    call = {"program": "train.py", "flags": [], "overrides": [*OPTIONS[1:], "seed=1,2", *chosen]}
    job = {
        "number": 0,
        "directory": "0_" + 12 * "a",
        "devices": 1,
        "optimized_metric": "val/acc",
        "overrides": [],
        "attempts": [],
    }
    job |= {"status": "waiting", "reason": None, "metric": None}
    manifest = {"calls": [call], "cwd": str(copy), "jobs": {12 * "a": job}}
    (directory / "manifest.json").write_text(json.dumps(manifest))
    resume = ("resume", "logs/sweep")
    done = sweep(copy, *resume, program="scripts/sweep.py")
    assert (done.returncode, f"--allow {SNAPSHOT}" in done.stderr) == (2, True), done.stderr
    assert not (copy / "ran").exists()
    allowed = sweep(copy, *resume, "--allow", SNAPSHOT, program="scripts/sweep.py")
    assert (allowed.returncode, (copy / "ran").exists()) == (0, True), allowed.stderr


@pytest.mark.parametrize(
    ("value", "line"), [("true", "train.py is in no checkout of git"), ("x", "=x: accepted is true or false")]
)
def test_without_a_checkout_there_is_no_snapshot(value: str, line: str, copy: Path) -> None:
    shutil.rmtree(copy / ".git")
    done = sweep(copy, *OPTIONS, "seed=1,2", "hydra.sweep.dir=logs/sweep", f"{SNAPSHOT}={value}")
    assert (done.returncode, line in done.stderr) == (2, True), done.stderr
    assert not (copy / "logs" / "sweep").exists()
