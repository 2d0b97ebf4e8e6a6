"""A project of one's own: what is written, what is refused, and what a later version of its files changes."""

import sys
from pathlib import Path

import pytest
from commands import python

from lockstep import new_project as project
from lockstep.errors import ConfigError
from lockstep.runs.composition import compose
from lockstep.runs.validation import validated


@pytest.mark.parametrize("model", ["image", "lightning", "text"])
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


@pytest.mark.parametrize("name", ["class", "full"])
def test_a_place_or_a_name_that_can_not_be_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=f"^PATH={tmp_path / name}: .*use"):
        project.create(tmp_path / name, "image")
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "thesis.tex"]


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


def test_the_shipped_sweeps_change_the_rate_of_a_module(tmp_path: Path) -> None:
    study = tmp_path / "study"
    project.create(study, "lightning")
    done = python(study / "train.py", "-m", "trainer=cpu", "hydra.launcher.dry_run=true", "sweep=scaling", cwd=study, code=0)
    assert "trainer.devices=2 model.lr=0.003 trainer=cpu sweep=scaling" in done.stdout
    assert "optimizer" not in done.stdout
    assert not [path for path in study.glob("logs/**/*") if path.is_file()]
