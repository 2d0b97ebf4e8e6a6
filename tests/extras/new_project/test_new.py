"""A project of one's own: what is written, what is refused, and what a later version of its files changes."""

import json
import os
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from capabilities import requires
from commands import ROOT, python

from lockstep.errors import ConfigError
from lockstep.extras.new_project import project
from lockstep.runs.composition import compose
from lockstep.runs.validation import validated


@pytest.mark.parametrize("model", project.models())
def test_it_is_small_and_its_configs_name_its_own_code(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project.create(tmp_path / "my-study", model)
    files = [path for path in (tmp_path / "my-study").rglob("*") if path.is_file()]
    assert len(files) <= 15
    assert sum(path.read_text().count("\n") for path in files) <= 400
    assert not [path for path in files if "my_project" in path.read_text()]
    monkeypatch.chdir(tmp_path / "my-study")
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the project's src/ is added
    cfg = compose("experiment=wide")
    targets = [cfg.datamodule._target_, cfg.model.net._target_ if "net" in cfg.model else cfg.model._target_]
    assert all(target.startswith("my_study.") for target in targets)
    assert (Path("src") / Path(*targets[0].split(".")[:-1])).with_suffix(".py").is_file()
    other = "model=cnn datamodule=digits optimized_metric=val/acc"
    assert f"`{other}` work here" in Path("README.md").read_text()
    validated(cfg := compose(*other.split(), "trainer=cpu", "test=false"))
    assert cfg.optimized_mode == "max"  # of another metric than the project's


@pytest.mark.parametrize("name", ["class", "1x", "torch", "tests", "Study", "full"])
def test_a_place_or_a_name_that_can_not_be_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=f"^PATH={tmp_path / name}: .*accepted is"):
        project.create(tmp_path / name, "image")
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "thesis.tex"]


def test_a_name_that_a_module_has_is_refused_with_the_module(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^PATH=.*/torch: there is a module torch, .*/torch/__init__.py; accepted is another"):
        project.create(tmp_path / "torch", "image")


@pytest.mark.parametrize(("content", "words"), [(None, "accepted is a text file"), ("", "has 0 bytes"), ("tiny", "has 4 bytes")])
def test_a_file_that_is_no_text_to_train_on_is_refused(content: str | None, words: str, tmp_path: Path) -> None:
    project.create(tmp_path / "study", "text")
    if content is not None:
        (tmp_path / "mine.txt").write_text(content)
    corpus = runpy.run_path(str(tmp_path / "study" / "src" / "study" / "data.py"))["Corpus"]
    with pytest.raises(ConfigError, match=f"^datamodule.path={tmp_path}/mine.txt: {words}"):
        corpus(path=str(tmp_path / "mine.txt"), batch_size=32).load()


def test_a_model_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    done = python(ROOT / "scripts" / "new.py", "study", "--model", "video", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"--model=video: accepted is {', '.join(project.models())}\n")
    assert not (tmp_path / "study").exists()


def test_without_a_path_the_command_says_what_it_takes(tmp_path: Path) -> None:
    done = python(ROOT / "scripts" / "new.py", cwd=tmp_path)
    usage, error = done.stderr.splitlines()
    assert done.returncode == 2
    assert usage.startswith("usage: lockstep new ")
    assert usage.endswith(" PATH")
    assert error == "lockstep new: error: the following arguments are required: PATH"


@pytest.mark.parametrize(
    ("environment", "target", "message"),
    [
        ("empty", "train", "has no lockstep: pip install --editable '.[dev]'"),
        ("other", "test", "an environment with pytest: pip install"),
    ],
)
def test_make_says_what_the_active_environment_lacks(environment: str, target: str, message: str, tmp_path: Path) -> None:
    study, bin_ = tmp_path / "study", tmp_path / environment / "bin"
    project.create(study, "image")
    bin_.mkdir(parents=True)
    if environment == "other":
        (bin_ / "lockstep").touch()
        (bin_ / "python").symlink_to("/bin/false")
    own = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"} | {
        "VIRTUAL_ENV": str(tmp_path / environment)
    }
    done = subprocess.run(["make", target], cwd=study, env=own, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[0]


def test_an_update_writes_what_the_user_has_not_changed_and_names_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tmp_path / "study"
    project.create(study, "image")
    assert project.update(study) == ([], [])
    (study / "Makefile").write_text("# mine\n")
    (study / "README.md").write_text("# mine\n")
    (study / "src" / "study" / "nets.py").unlink()
    later = {name: f"{text}# later\n" for name, text in project._render("study", "image").items() if name != "README.md"}
    later |= {"README.md": project._render("study", "image")["README.md"], "CHANGES.md": "new\n"}
    monkeypatch.setattr(project, "_render", lambda *_: later)
    written, kept = project.update(study)
    assert kept == ["Makefile", "src/study/nets.py"]
    assert set(written) == {*later} - {*kept, "README.md"}
    assert (study / "Makefile").read_text() == (study / "README.md").read_text() == "# mine\n"
    assert (study / "CHANGES.md").read_text() == "new\n"
    assert project.update(study) == ([], [])


@pytest.mark.parametrize("record", [None, '{"name": "../x", "model": "image", "files": {}}', '{"name": "x", "model": "../x"}'])
def test_an_update_of_what_is_no_project_is_refused(record: str | None, tmp_path: Path) -> None:
    if record is not None:
        (tmp_path / project.RECORD).write_text(record)
    with pytest.raises(ConfigError, match=f"has no {project.RECORD}"):
        project.update(tmp_path)


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, "lockstep==9.1"),
        ('{"url": "file:///x/lockstep-9.1.whl", "archive_info": {}}', "lockstep @ file:///x/lockstep-9.1.whl"),
        (
            '{"url": "https://host/l.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}',
            "lockstep @ git+https://host/l.git@abc",
        ),
    ],
)
def test_the_engine_is_the_one_that_is_installed(
    origin: str | None, requirement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "METADATA").write_text("Metadata-Version: 2.1\nName: lockstep\nVersion: 9.1\n")
    if origin is not None:
        (tmp_path / "direct_url.json").write_text(origin)
    monkeypatch.setattr(metadata, "distribution", lambda _: metadata.PathDistribution(tmp_path))
    assert project.engine() == requirement


@requires("plain_lightning")
def test_the_shipped_sweeps_change_the_rate_of_a_module_or_say_that_it_has_none(tmp_path: Path) -> None:
    study = tmp_path / "study"
    project.create(study, "lightning")
    sweep = (study / "train.py", "-m", "trainer=cpu", "hydra.launcher.dry_run=true")
    for name, points in (("lr", "model.lr=0.0003"), ("scaling", "trainer.devices=2 model.lr=0.003")):
        done = python(*sweep, f"sweep={name}", cwd=study)
        assert done.returncode == 0, done.stderr
        assert f"{points} trainer=cpu sweep={name}" in done.stdout
        assert "optimizer" not in done.stdout
    done = python(*sweep, "sweep=scaling", "~model.lr", cwd=study)
    values, accepted = "1e-3,3e-3", "model has neither lr nor learning_rate; accepted is its own key in the place of the sweep"
    assert done.returncode == 2
    assert done.stderr == f"hydra.sweeper.params.model.optimizer.lr={values}: {accepted}: KEY={values}\n"
    assert not [*(study / "logs").iterdir()]


@requires("plain_lightning", "search")
def test_a_search_for_the_rate_of_a_module(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    project.create(tmp_path / "study", "lightning")
    options = ("sweep=optuna", "trainer=cpu", "hydra.launcher.dry_run=true")
    done = python(tmp_path / "study" / "train.py", "-m", *options, cwd=tmp_path / "study")
    assert done.returncode == 0, done.stderr
    assert "sweep=optuna trainer=cpu model.lr=" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("model", sorted({*project.models()} - {"image"}))  # which test_wheel.py trains
def test_it_trains_on_two_processes_as_on_one(model: str, tmp_path: Path) -> None:
    """What a project's own tests do, by commands that import nothing."""
    study = tmp_path / "study"
    project.create(study, model)
    two = ("trainer=cpu", "trainer.devices=2")
    done = python(study / "train.py", *two, "debug=fast", "hydra.run.dir=run", cwd=study)
    assert done.returncode == 0, done.stderr
    record = json.loads((study / "run" / "metrics.json").read_text())
    assert (record["world_size"], record["steps"]) == (2, 1)
    done = python(ROOT / "scripts" / "parity.py", *two, "parity.steps=3", cwd=study)
    assert done.returncode == 0, done.stdout + done.stderr
