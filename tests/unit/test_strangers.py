"""What a stranger has crafted runs nothing: directories of runs and sweeps, caches, variables. Checkpoints: test_targets.py."""

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from crafted import CHECKPOINTS, COMMAND_LINES, RUN_TARGETS, changed, command_line
from omegaconf import DictConfig, OmegaConf

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.models.from_checkpoint import load_model
from lockstep.runs import resume
from lockstep.runs.identity import Identity
from lockstep.runs.resume import command_to_continue

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


@pytest.mark.parametrize("how", COMMAND_LINES)
def test_a_run_that_says_so_is_not_continued(how: str, stranger: Path) -> None:
    Identity("its id", *command_line(how, stranger), None).write(stranger)
    with pytest.raises(ConfigError) as refused:
        command_to_continue([f"resume={stranger}"])
    assert "\n" not in str(refused.value)
    assert str(stranger) in str(refused.value)


@pytest.mark.parametrize("how", RUN_TARGETS)
def test_a_directory_s_config_may_not_name_that(how: str, stranger: Path, shipped: DictConfig) -> None:
    key, node = RUN_TARGETS[how]
    OmegaConf.update(shipped, key, node, merge=False, force_add=True)
    shipped.allow, shipped.run_dir = [], str(stranger)
    line = r"(a directory's config may not name that; .* allow=\[|No module named 'evil'; accepted is )"
    with pytest.raises(ConfigError, match=rf"^{key}[.\d]*\._target_=[\w.]+: {line}"):
        build(shipped, Plan.from_config(shipped))


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
