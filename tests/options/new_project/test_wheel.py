"""The package as a wheel, in environments of its own: a project is made by an earlier one, upgraded, trained, tested, swept
over and reported on."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from commands import ROOT, checkout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LIBRARIES = Path(sysconfig.get_path("purelib"))
PARTS = ("src", "conf", "templates", "scripts", "train.py", "setup.py")  # of the package
SWEEP = "-m trainer=cpu trainer.devices=1,2 debug=fast hydra.sweep.dir=sweep"


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """A command's output. Nothing of this checkout is importable, and pip has no index."""
    own = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS")}
    own |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=own | environment, capture_output=True, text=True, timeout=400)
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


def git(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *map(str, arguments)], cwd=cwd, capture_output=True, text=True)


def texts(project: Path) -> dict[str, str]:
    """Return the texts of the generated files; the project's runs lie in sweep."""
    files = [path for path in project.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return {str(path.relative_to(project)): path.read_text() for path in files if "sweep" not in path.parts}


def earlier_commit() -> str | None:
    """The last one whose package is not that of the working tree; None in a clone that does not reach as far back."""
    commits = git("log", "-2", "--format=%H", "--", *PARTS).stdout.split()
    return next((commit for commit in commits if git("diff", "--quiet", commit, "--", *PARTS).returncode == 1), None)


def make_wheel(source: Path) -> Path:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", source / "wheels", source, cwd=source)
    return next((source / "wheels").glob("*.whl"))


def test_a_project_of_an_earlier_wheel_is_upgraded_trains_on_two_processes_and_passes_its_tests(tmp_path: Path) -> None:
    """Trained as it was made, in a sweep, in the environment that is active; then brought up to date, and tested in its own."""
    engine, study, earlier = make_environment(tmp_path / "engine"), tmp_path / "my_study", earlier_commit()
    install = (engine / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade")
    if earlier is not None:
        git("clone", "--quiet", "--shared", "--no-checkout", ROOT, tmp_path / "earlier")
        git("checkout", "--quiet", earlier, cwd=tmp_path / "earlier")
        run(*install, "--no-compile", tmp_path / "earlier", cwd=tmp_path)  # pip makes the wheel
        run(engine / "lockstep", "new", "my_study", cwd=tmp_path)
    wheel = make_wheel(checkout(tmp_path / "now"))
    run(*install, wheel, cwd=tmp_path)
    (tmp_path / "new").mkdir()
    run(engine / "lockstep", "new", "my_study", cwd=tmp_path / "new" if earlier is not None else tmp_path)
    assert "2 of 2 jobs finished" in run("make", "train", f"ARGS={SWEEP}", cwd=study, VIRTUAL_ENV=str(engine.parent))
    assert {json.loads(record.read_text())["world_size"] for record in study.glob("sweep/*/metrics.json")} == {1, 2}
    if earlier is not None:
        assert "written: pyproject.toml" in run(engine / "lockstep", "new", "--update", study, cwd=tmp_path)
        assert {**texts(study), **texts(tmp_path / "new" / "my_study")} == texts(study)
    assert wheel.as_uri() in (study / "pyproject.toml").read_text()
    bin_ = make_environment(study / ".venv")  # which make fills, from the project's pyproject.toml
    assert "2 passed" in run("make", "test", cwd=study)
    assert "report.html" in run(bin_ / "lockstep", "report", "sweep", cwd=study)
    assert run(bin_ / "lockstep", "runs", ".", cwd=study).count("finished") == 2
    assert f"Lockstep's configs are in {study}/.venv/lib" in run(bin_ / "lockstep", cwd=study)
    if earlier is None:
        pytest.skip("all but the upgrade was tested: this clone has no commit with an earlier package")
