"""The command that gives the template another name."""

import shutil
import subprocess
from pathlib import Path

import pytest
from checkouts import checkout
from commands import LONG, python

pytestmark = pytest.mark.slow
TESTED_AND_TRAINED = """
import runpy, sys
import pytest
tests = ("tests/unit/test_cli.py", "tests/unit/config/test_plan.py", "tests/unit/datamodules/test_samplers.py")
if code := pytest.main(["-q", "-p", "no:cacheprovider", *tests]):
    sys.exit(code)
sys.argv = ["train.py", "debug=fast", "trainer=cpu"]
runpy.run_path("train.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("checkout"))


@pytest.mark.parametrize("name", ["torch", "vision-lab", "Vision", "class"])
def test_a_name_that_can_not_be_a_package_s_is_refused(name: str, original: Path) -> None:
    done = python("scripts/make_it_yours.py", name, cwd=original)
    assert done.returncode == 2
    assert f"name={name}: accepted is" in done.stderr
    assert (original / "src" / "lockstep").is_dir()


def test_uncommitted_changes_are_not_mixed_with_it(original: Path) -> None:
    (original / "new.txt").touch()
    done = python("scripts/make_it_yours.py", "vision_lab", cwd=original)
    (original / "new.txt").unlink()
    assert done.returncode == 2
    assert "uncommitted changes" in done.stderr
    assert (original / "src" / "lockstep").is_dir()


@pytest.mark.timeout(LONG + 100)
def test_a_renamed_package_trains_and_passes_its_tests(original: Path, tmp_path: Path) -> None:
    renamed = shutil.copytree(original, tmp_path / "renamed")
    done = python("scripts/make_it_yours.py", "vision_lab", cwd=renamed)
    assert done.returncode == 0, done.stderr
    assert "src/vision_lab" in done.stdout
    left = subprocess.run(["grep", "-rlI", "--exclude-dir=.git", "lockstep", "."], cwd=renamed, capture_output=True, text=True)
    assert left.stdout == ""
    assert not [path for path in renamed.rglob("*lockstep*") if ".git" not in path.parts]
    for check in (("check",), ("format", "--check")):
        done = python("-m", "ruff", *check, ".", cwd=renamed)
        assert done.returncode == 0, done.stdout
    done = python("-c", TESTED_AND_TRAINED, cwd=renamed, timeout=LONG, PYTHONPATH=str(renamed / "src"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    (config,) = renamed.glob("logs/*/*/.hydra/config.yaml")
    assert "_target_: vision_lab.nets." in config.read_text()
