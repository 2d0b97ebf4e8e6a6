"""The command that turns the template into a project."""

import re
import subprocess
from pathlib import Path

import pytest
from commands import ROOT, python

pytestmark = pytest.mark.slow


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of the working tree as it is, committed."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    return tmp_path


def test_a_renamed_package_without_some_rooms_trains(checkout: Path) -> None:
    rooms = ("parity", "cnn", "resnet", "regression", "torchvision_images", "image_folder", "synthetic_images", "pictures")
    done = python("scripts/make_it_yours.py", "vision_lab", "--without", *rooms, cwd=checkout)
    assert done.returncode == 0, done.stderr
    assert "src/vision_lab" in done.stdout
    assert not (checkout / "conf" / "model" / "resnet18.yaml").exists()
    assert not (checkout / "src" / "vision_lab" / "parity").exists()
    assert re.search(r"Makefile:\d+: PARITY := ", done.stdout)
    assert not (checkout / "src" / "lockstep").exists()
    done = python("-m", "ruff", "check", "src", "scripts", "train.py", cwd=checkout)
    assert done.returncode == 0, done.stdout
    done = python("train.py", "debug=fast", "trainer=cpu", cwd=checkout, PYTHONPATH=str(checkout / "src"))
    assert done.returncode == 0, done.stderr
    assert "_target_: vision_lab.nets.MLP" in done.stdout
    assert "pictures" not in done.stdout


def test_uncommitted_changes_are_not_mixed_with_it(checkout: Path) -> None:
    (checkout / "new.txt").touch()
    done = python("scripts/make_it_yours.py", "vision_lab", cwd=checkout)
    assert done.returncode == 2
    assert "uncommitted changes" in done.stderr
    assert (checkout / "src" / "lockstep").is_dir()
