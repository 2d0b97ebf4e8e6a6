"""The checks that stand beside a class: those of this package, and those of a project."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf, open_dict
from refusals import changed, refusal, validate

import lockstep
from lockstep.config.class_checks import check_classes, load, rules_in
from lockstep.config.plan import Plan

ROOT = Path(lockstep.__file__).parent
MODULES = sorted(".".join(file.relative_to(ROOT.parent).with_suffix("").parts) for file in ROOT.glob("**/*/checks.py"))
MODULES.remove("lockstep.config.checks")
ROOMS = {"lockstep.models": "model", "lockstep.datamodules": "datamodule", "lockstep.trainer": "trainer"}
RULES = [(module, name, argument) for module in MODULES for name, rules in load(module).RULES.items() for argument in rules]


@pytest.mark.parametrize(("module", "name", "argument"), RULES)
def test_an_argument_refuses_what_makes_no_sense_and_says_what_does(
    module: str, name: str, argument: str, shipped: DictConfig
) -> None:
    rule, package = load(module).RULES[name][argument], module.rpartition(".")[0]
    node = ROOMS[package] if name in ("*", "plain") else "callbacks.best_checkpoint"
    key, nonsense = f"{node}.{argument}", 5 if rule.words.startswith("accepted is a list of") else ["nonsense"]
    group, _, leaf = argument.rpartition(".")
    with open_dict(shipped):
        if name != "*":  # a plain class of a group, or some part
            OmegaConf.update(shipped, node, {"_target_": f"{package}.anywhere.{name}"}, merge=False)
        if not OmegaConf.is_dict(parent := OmegaConf.select(shipped, f"{node}.{group}" if group else node)):
            OmegaConf.update(shipped, f"{node}.{group}", parent := OmegaConf.create({}), merge=False)
            parent = OmegaConf.select(shipped, f"{node}.{group}")
        parent[leaf] = nonsense
    message = refusal(shipped)
    assert message == f"{key}={nonsense}: {rule.words}"
    assert "accepted is" in message


def test_every_class_that_has_checks_is_one_of_its_package() -> None:
    for module in MODULES:
        checks, folder = load(module), ROOT.parent / Path(*module.split(".")[:-1])
        code = "\n".join(file.read_text() for file in folder.glob("*.py"))
        for name in {*checks.RULES, *getattr(checks, "CHECKS", {})} - {"*", "plain"}:
            assert re.search(rf"^(class|def) {name}\b", code, re.MULTILINE), f"{module}: {name}"


def test_no_check_imports_torch() -> None:
    code = f"from lockstep.config.class_checks import load; [load(m) for m in {MODULES}]"
    code += "; import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.net", {"_target_": "lockstep.nets.MLP", "hidden": [-5]}, "model.net.hidden=[-5]: accepted is a list of integers"),
        ("model.net", {"_target_": "lockstep.nets.cnn.CNN", "width": 0}, "model.net.width=0: accepted is an integer"),
    ],
)
def test_a_class_is_known_by_each_of_its_names(key: str, value: Any, message: str, shipped: DictConfig) -> None:
    OmegaConf.update(shipped, key, value, merge=False)
    assert refusal(shipped).startswith(message)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a package whose import fails, with checks beside it."""
    package = tmp_path / "checked_project"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "checks.py").write_text(
        "from lockstep.config.rules import integer\n"
        "from lockstep.errors import config_error\n"
        "RULES = {'Net': {'cells': integer(2)}}\n"
        "def check(cfg, key, plan):\n"
        "    if plan.world_size > 1:\n"
        "        raise config_error(f'{key}.cells', cfg.model.net.cells, 'accepted is one process')\n"
        "CHECKS = {'Net': check}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def with_net(cfg: DictConfig, cells: int) -> DictConfig:
    return changed(cfg, **{"model.net": {"_target_": "checked_project.nets.Net", "cells": cells}, "trainer.accelerator": "cpu"})


@pytest.mark.usefixtures("project")
def test_a_project_s_classes_have_checks_beside_them_and_are_not_imported(shipped: DictConfig) -> None:
    assert refusal(with_net(shipped, 1)) == "model.net.cells=1: accepted is an integer of at least 2"
    validate(with_net(shipped, 2))
    assert refusal(changed(shipped, **{"trainer.devices": 2})) == "model.net.cells=2: accepted is one process"


def test_what_came_with_a_directory_that_was_read_is_not_run(project: Path, shipped: DictConfig) -> None:
    cfg = changed(with_net(shipped, 1), allow=[], run_dir=str(project / "checked_project" / "run"))
    assert not [key for key, _ in rules_in(cfg) if key.endswith(".cells")]
    check_classes(changed(cfg, **{"trainer.devices": 2}), Plan.from_config(cfg))
