"""The package as a wheel, in environments of its own: a project is made, trained, tested, swept over and reported on."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from checkouts import checkout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LIBRARIES = Path(sysconfig.get_path("purelib"))


def run(*command: str | Path, cwd: Path) -> str:
    """A command's output. Nothing of this checkout is importable, and pip has no index."""
    own = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS")}
    own |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=own, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def make_environment(folder: Path) -> Path:
    """An environment with all libraries of this one, but without this package."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    libraries = folder / "libraries"
    libraries.mkdir()
    for entry in LIBRARIES.iterdir():
        if "lockstep" not in entry.name:
            (libraries / entry.name).symlink_to(entry)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "libraries.pth").write_text(f"{libraries}\n")
    return folder / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = checkout(folder / "source")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source, cwd=folder)
    return next(folder.glob("*.whl"))


def test_a_project_of_the_wheel_trains_on_two_processes_and_passes_its_tests(wheel: Path, tmp_path: Path) -> None:
    engine = make_environment(tmp_path / "engine")
    run(engine / "python", "-m", "pip", "install", "--quiet", "--no-deps", wheel, cwd=tmp_path)
    run(engine / "lockstep", "new", "my_study", cwd=tmp_path)
    study = tmp_path / "my_study"
    bin_ = make_environment(study / ".venv")  # which make fills, from the project's pyproject.toml
    short = "trainer=cpu trainer.devices=2 trainer.max_epochs=1 trainer.limit_train_batches=3"
    run("make", "train", f"ARGS={short}", cwd=study)
    (trained,) = study.glob("logs/images_convnet/*/metrics.json")
    assert json.loads(trained.read_text())["world_size"] == 2
    assert "2 passed" in run("make", "test", cwd=study)
    sweep = ("trainer=cpu", "trainer.devices=1,2", "debug=fast", "hydra.sweep.dir=sweep")
    assert "2 of 2 jobs finished" in run(bin_ / "lockstep", "train", "-m", *sweep, cwd=study)
    assert "report.html" in run(bin_ / "lockstep", "report", "sweep", cwd=study)
    assert run(bin_ / "lockstep", "runs", ".", cwd=study).count("finished") == 3
    assert f"Lockstep's configs are in {study}/.venv/lib" in run(bin_ / "lockstep", cwd=study)
