"""What a stranger has crafted runs nothing: directories of runs and sweeps, caches, variables. Checkpoints: test_targets.py."""

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from crafted import CHECKPOINTS, COMMAND_LINES, MODEL, RUN_TARGETS, TRAIN, changed, command_line
from omegaconf import DictConfig, OmegaConf

from lockstep.build import build
from lockstep.cli import start
from lockstep.config.construct import check_targets, get_trust
from lockstep.config.plan import Plan
from lockstep.config.read import Given, check_flags, check_overrides
from lockstep.config.targets import is_project_path, source_directory
from lockstep.errors import ConfigError
from lockstep.launchers.inherited_config import FILE, read_inherited_config
from lockstep.models.from_checkpoint import load_model
from lockstep.runs import resume
from lockstep.runs.composition import CONF
from lockstep.runs.identity import Identity
from lockstep.runs.resume import command_to_continue
from lockstep.sweeps.manifest import Manifest

sys.path.append(str(CONF.parent / "scripts"))
import sweep

EVIL = "open('ran', 'w')\ndef run(*_, **__): open('ran', 'w')\nclass Data: __init__ = run\n"


class Pickled:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("open('ran', 'w')",)


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that a user works in. A stranger's directory has come into logs/, with modules beside it and in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(resume, "this_rank", lambda: None)
    for folder in ("logs/stranger/conf", "conf"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("logs/stranger/evil.py", "logs/evil.py", "logs/stranger/conf/evil.py"):
        (tmp_path / file).write_text(EVIL)
    (tmp_path / "logs" / "stranger" / "evil.pickle").write_bytes(pickle.dumps(Pickled()))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("logs", "evil", "mine")]:
        del sys.modules[name]
    assert not list(tmp_path.rglob("ran"))


@pytest.fixture
def stranger(project: Path) -> Path:
    return project / "logs" / "stranger"


def test_there_are_fifty_and_more() -> None:
    assert len(CHECKPOINTS) + len(RUN_TARGETS) + len(COMMAND_LINES) >= 50


@pytest.mark.parametrize("how", COMMAND_LINES)
def test_a_run_that_says_so_is_not_continued(how: str, stranger: Path) -> None:
    Identity("its id", *command_line(how, stranger), None).write(stranger)
    with pytest.raises(ConfigError) as refused:
        command_to_continue([f"resume={stranger}"])
    assert "\n" not in str(refused.value)
    assert str(stranger) in str(refused.value)


def test_a_run_that_begins_from_a_checkpoint_is_trusted_as_its_source(stranger: Path) -> None:
    source = f"{stranger}/checkpoints/last.ckpt@3"
    cfg = OmegaConf.create({"allow": [], "resume": None, "run_dir": "logs/own", "begin_from": source})
    assert isinstance(cfg, DictConfig)
    assert source_directory(cfg) == stranger
    cfg.model = {"_target_": "logs.evil.Data"}
    with pytest.raises(ConfigError, match=r"^model\._target_=logs\.evil\.Data: "):
        check_targets(cfg, get_trust(cfg))  # pyright: ignore[reportArgumentType]


def test_a_program_that_lies_beside_what_was_read_has_its_own_folder_trusted(
    stranger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person has started it: it runs already."""
    code = stranger / "code"
    assert not is_project_path(code / "net.py", stranger)
    code.mkdir()
    (code / "train.py").touch()
    monkeypatch.setattr(sys, "argv", [str(code / "train.py")])
    assert is_project_path(code / "net.py", stranger)
    assert is_project_path(code / "net.py", stranger / "job")
    assert not is_project_path(stranger / "net.py", stranger)


@pytest.mark.parametrize("how", COMMAND_LINES)
def test_a_sweep_that_says_so_is_not_continued(how: str, stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags, overrides = command_line(how, stranger)
    manifest = Manifest(stranger)
    manifest.add_call("train.py", flags, overrides, Path.cwd())
    monkeypatch.setattr(sweep, "_called", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(ConfigError, match=str(stranger)):
        sweep.resume(Manifest(stranger), stranger, Given(), Path("train.py").absolute())


def test_what_is_said_on_the_command_line_too_or_is_allowed_is_taken(stranger: Path) -> None:
    own = ["hydra.job_logging.handlers.file.filename=a.log", "+hydra.job.env_set.DATA=here", "name=${eval:1}"]
    for given in (Given(own), Given(allow=["hydra.job_logging.handlers.file.filename", "hydra.job.env_set.DATA", "name"])):
        check_overrides(stranger, own, TRAIN, given)
    harmless = ["hydra.verbose=true", "hydra.job_logging.root.level=WARN", "hydra/launcher=slurm", "hydra.launcher.detach=true"]
    harmless += ["datamodule.data_dir=../data", "datamodule.data_dir=${oc.env:DATA}", "mirror=s3://bucket/runs", "mirror=null"]
    check_overrides(stranger, harmless, TRAIN, Given())
    check_flags(stranger, ["--config-dir", str(stranger.parents[1] / "conf")], Given())


def test_commands_in_a_manifest_are_not_run(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those that earlier versions have written, nor another program, nor from another folder."""
    monkeypatch.setattr(sweep, "_called", lambda *_: pytest.fail("a process was started"))
    evil = ["-cimport os; os.system('touch ran')"]
    (stranger / "manifest.json").write_text(json.dumps({"commands": [evil], "cwd": str(stranger.parents[1]), "jobs": {}}))
    program = Path("train.py").absolute()
    with pytest.raises(ConfigError, match="does not say how it was started; accepted is its own command"):
        sweep.resume(Manifest(stranger), stranger, Given(), program)
    manifest = Manifest(stranger)
    manifest.add_call("evil.py", TRAIN, [], Path.cwd())
    with pytest.raises(ConfigError, match=r"was started by evil.py; accepted is --program"):
        sweep.resume(manifest, stranger, Given(), program)
    manifest.calls.clear()
    manifest.add_call("train.py", TRAIN, [], stranger)
    with pytest.raises(ConfigError, match=rf"was started in {stranger}; accepted is to resume it from there"):
        sweep.resume(manifest, stranger, Given(), program)


@pytest.mark.parametrize("how", RUN_TARGETS)
def test_a_directory_s_config_may_not_name_that(how: str, stranger: Path, shipped: DictConfig) -> None:
    key, node = RUN_TARGETS[how]
    OmegaConf.update(shipped, key, node, merge=False, force_add=True)
    shipped.allow, shipped.run_dir = [], str(stranger)
    line = r"(a directory's config may not name that; .* allow=\[|No module named 'evil'; accepted is )"
    with pytest.raises(ConfigError, match=rf"^{key}[.\d]*\._target_=[\w.]+: {line}"):
        build(shipped, Plan.from_config(shipped))


def test_what_a_run_is_made_of_and_the_project_s_own_modules_are_taken(
    stranger: Path, project: Path, shipped: DictConfig
) -> None:
    (project / "mine.py").write_text("import torch\ndef net(): return 1\nclass Data: ...\n")
    shipped.allow, shipped.run_dir = [], str(stranger)
    own = {"a": "mine.net", "b": "mine.Data", "c": "torchmetrics.F1Score", "d": "torchvision.transforms.v2.Resize"}
    own |= {
        "e": "lightning.pytorch.callbacks.Timer",
        "f": "lockstep.nets.MLP",
        "g": "torchvision.models.resnet18",
    }
    OmegaConf.update(shipped, "callbacks.own", {name: {"_target_": target} for name, target in own.items()}, force_add=True)
    trust = get_trust(shipped)
    assert trust is not None
    check_targets(shipped, trust)
    shipped.callbacks.own.a._target_ = "json.loads"
    with pytest.raises(ConfigError, match=r"^callbacks.own.a._target_=json.loads: .* allow=\[json.loads\]$"):
        check_targets(shipped, trust)
    shipped.allow = ["json"]
    trust = get_trust(shipped)
    assert trust is not None
    check_targets(shipped, trust)


def test_pretrained_weights_in_a_cache_are_not_unpickled(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision asks for them with weights_only=False, and checks the hash of none that is there."""
    cache = project / "torch" / "hub" / "checkpoints" / "resnet18-f37072fd.pth"
    cache.parent.mkdir(parents=True)
    torch.save(Pickled(), cache)
    monkeypatch.setenv("TORCH_HOME", str(project / "torch"))
    hostile = changed({"net": {"_target_": "torchvision.models.resnet18", "weights": "IMAGENET1K_V1"}})
    torch.save({"state_dict": {}, "hyper_parameters": hostile}, project / "hostile.ckpt")
    with pytest.raises(ConfigError, match=r"no model can be built of what it says"):
        load_model(project / "hostile.ckpt")


@pytest.mark.parametrize(
    "variable", ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1", "HYDRA_INSTANTIATE_ALLOWLIST_OVERRIDE=os.system:os:builtins.exec"]
)
def test_variables_open_nothing(variable: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*variable.split("="))
    path = project / "hostile.ckpt"
    for content in (Pickled(), {"hyper_parameters": Pickled()}, {"hyper_parameters": changed(CHECKPOINTS["a shell"])}):
        torch.save(content, path)
        with pytest.raises(ConfigError, match=rf"^checkpoint={path}: "):
            load_model(path)


def test_a_run_that_a_person_starts_reads_no_inherited_config(stranger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a rank only that of just its command line."""
    arguments = ["train.py", f"hydra.run.dir={stranger}"]
    (stranger / FILE).write_text(json.dumps({"arguments": arguments, "config": {"model": MODEL}}))
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr("lockstep.launchers.inherited_config.run_task", lambda *_: pytest.fail("it was read"))
    start(lambda: None)
    assert read_inherited_config(["other.py", arguments[1]]) is None
