"""What a config's targets take, what they refuse, and that a stranger's checkpoint or run directory runs nothing."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from lightning import LightningDataModule, LightningModule, Trainer
from omegaconf import DictConfig, OmegaConf
from torch import nn
from torch.utils.data import DataLoader

from lockstep.build import build, build_model, load_model
from lockstep.config.arguments import fits, words
from lockstep.config.construct import construct, refused_by_lightning
from lockstep.config.plan import Plan
from lockstep.config.targets import IN_A_CHECKPOINT, resolve
from lockstep.datamodules import DataSpec
from lockstep.errors import ConfigError

SPEC = {"input_shape": [1, 8, 8], "num_outputs": 10, "class_names": None}
MODEL: dict[str, Any] = {
    "_target_": "lockstep.models.Classifier",
    "net": {"_target_": "lockstep.nets.MLP", "hidden": [4]},
    "optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 1e-3},
    "lr_scheduler": {"_target_": "lockstep.models.schedules.constant", "_partial_": True},
    "metrics": ["loss"],
}


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """A model config with values replaced, {"net.hidden": [8]} say."""
    model = copy.deepcopy(MODEL)
    for key, value in changes.items():
        *parents, name = key.split(".")
        node = model
        for parent in parents:
            node = node[parent]
        node[name] = value
    return {"model": model, "spec": SPEC}


def saved(path: Path, model_config: Any) -> Path:
    state = build_model(changed({})).state_dict()
    torch.save({"state_dict": state, "hyper_parameters": model_config}, path)
    return path


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that, were it run or loaded, would leave another one beside it: `ran`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w')\ndef run(*_, **__): open('ran', 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "evil.py"


RUN = "touch ran"
HOSTILE: dict[str, dict[str, Any]] = {
    "a shell": {"net": {"_target_": "os.system", "command": RUN}},
    "a process": {"net": {"_target_": "subprocess.Popen", "args": RUN, "shell": True}},
    "deletion": {"net": {"_target_": "shutil.rmtree", "path": "."}},
    "a script": {"net": {"_target_": "runpy.run_path", "path_name": "evil.py"}},
    "text as code": {"net": {"_target_": "builtins.exec", "_args_": ["open('ran', 'w')"]}},
    "a pickle": {"net": {"_target_": "torch.load", "f": "evil.pt", "weights_only": False}},
    "code from a hub": {"net": {"_target_": "torch.hub.load", "repo_or_dir": ".", "model": "m", "source": "local"}},
    "a module of its own": {"net": {"_target_": "evil.run"}},
    "the task": {"_target_": "os.system", "command": RUN},
    "the optimizer, called later": {"optimizer": {"_target_": "os.system", "_partial_": True}},
    "the schedule, called later": {"lr_scheduler": {"_target_": "evil.run", "_partial_": True}},
    "within a list": {"net": {"_target_": "torch.nn.Sequential", "_args_": [{"_target_": "os.system", "command": RUN}]}},
    "within a group": {"net.deep": {"deeper": [{"_target_": "evil.run"}]}},
    "what torch.nn imports": {"net": {"_target_": "torch.nn.functional.importlib.import_module", "name": "evil"}},
    "what our models import": {"net": {"_target_": "lockstep.models.task.torch.hub.load", "repo_or_dir": "."}},
    "our own builder": {"net": {"_target_": "lockstep.build.load_model", "checkpoint": "other.ckpt"}},
    "our own files": {"net": {"_target_": "lockstep.atomic_files.replace_text", "path": "ran", "text": ""}},
    "Hydra": {"net": {"_target_": "hydra.utils.instantiate", "config": {"_target_": "evil.run"}}},
    "a method": {"net": {"_target_": "torch.nn.Module.register_forward_hook", "self": None, "hook": None}},
    "a function of torch.nn": {"net": {"_target_": "torch.nn.init.normal_", "tensor": None}},
    "a function of torchvision": {"net": {"_target_": "torchvision.models.feature_extraction.create_feature_extractor"}},
    "a private name": {"net": {"_target_": "torchvision.models._api.get_weight", "name": "ResNet18_Weights.DEFAULT"}},
    "no text": {"net": {"_target_": ["os.system"], "command": RUN}},
    "an empty part": {"net": {"_target_": "torch.nn..Linear"}},
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_checkpoint_made_to_run_code_is_refused(how: str, evil: Path) -> None:
    path = saved(evil.with_name("hostile.ckpt"), changed(HOSTILE[how]))
    with pytest.raises(ConfigError, match=rf"^checkpoint={path}: model[\w.]*_target_=") as refused:
        load_model(path)
    assert "\n" not in str(refused.value)
    assert not (evil.parent / "ran").exists()
    assert evil.exists()


@pytest.mark.parametrize(
    "content",
    [
        *(None, 5, {}, {"model": 5, "spec": SPEC}, {"model": MODEL}, {"model": {}, "spec": SPEC}),
        *({"model": MODEL, "spec": {"input_shape": None}}, {"model": MODEL, "spec": SPEC | {"input_shape": [-1]}}),
    ],
)
def test_a_checkpoint_that_says_nothing_of_its_model_is_refused(content: Any, tmp_path: Path) -> None:
    path = saved(tmp_path / "odd.ckpt", content)
    with pytest.raises(ConfigError, match=rf"^checkpoint={path}: "):
        load_model(path)


def test_text_in_a_checkpoint_stays_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpolation could read the environment."""
    monkeypatch.setenv("SECRET", "[4]")
    path = saved(tmp_path / "asks.ckpt", changed({"net.hidden": "${oc.decode:${oc.env:SECRET}}"}))
    with pytest.raises(ConfigError, match=r"model\.net\.hidden=\$\{oc\.decode:.*: accepted is a list of integers"):
        load_model(path)


def test_a_module_of_one_s_own_is_allowed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_nets.py").write_text("from lockstep.nets import MLP\nclass Mine(MLP): ...\ndef imported(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = saved(tmp_path / "mine.ckpt", changed({"net._target_": "my_nets.Mine"}))
    with pytest.raises(ConfigError, match=r"model\.net\._target_=my_nets\.Mine: a checkpoint may not name that; accepted are"):
        load_model(path)
    assert type(load_model(path, allow=["my_nets"]).net).__name__ == "Mine"


@pytest.mark.parametrize(
    "path",
    [
        *("lockstep.models.Classifier", "lockstep.nets.resnet", "lockstep.models.schedules.cosine", "torch.nn.Linear"),
        *("torch.optim.AdamW", "torch.optim.lr_scheduler.StepLR", "torchvision.models.resnet18", "torchvision.models.ResNet"),
    ],
)
def test_what_models_are_made_of_is_allowed_in_a_checkpoint(path: str) -> None:
    assert callable(resolve("model.net", path, IN_A_CHECKPOINT))


@pytest.mark.parametrize(
    ("key", "target"),
    [
        ("datamodule", "os.system"),
        ("model", "subprocess.run"),
        ("model.net", "os.system"),
        ("model.optimizer", "builtins.eval"),
        ("model.lr_scheduler", "subprocess.Popen"),
        ("trainer", "shutil.rmtree"),
        ("trainer.checkpoint_io", "os.system"),
        ("trainer.strategy", "runpy.run_path"),
        ("callbacks.pictures", "os.popen"),
        ("guards.watchdog", "builtins.exec"),
        ("logger.tensorboard", "importlib.import_module"),
    ],
)
def test_a_run_directory_made_to_run_code_is_refused(key: str, target: str, shipped: DictConfig, evil: Path) -> None:
    OmegaConf.update(shipped, f"{key}._target_", target)
    with pytest.raises(ConfigError, match=rf"^{key}\._target_={target}: .*blocklisted"):
        build(shipped, Plan.of(shipped))
    assert not (evil.parent / "ran").exists()


# Arguments


class Typed:
    """Of which a config can give every argument."""

    def __init__(
        self,
        count: int,
        rate: float = 0.5,
        mode: Literal["min", "max"] = "min",
        sizes: Sequence[int] = (),
        name: str | None = None,
        **others: Any,
    ) -> None:
        if count > 100:
            raise ValueError(f"Invalid count value: {count}")
        if others:
            Closed(**others)
        self.values = (count, rate, mode, list(sizes), name)


class Closed:
    def __init__(self, width: int = 1) -> None:
        self.broken = [][width - 1] if width == 1 else width


class Derived(Typed):
    def __init__(self, extra: bool = False, **typed: Any) -> None:
        super().__init__(**typed)


def node(name: str, /, **values: Any) -> dict[str, Any]:
    return {"_target_": f"{__name__}.{name}", **values}


@pytest.mark.parametrize(
    ("name", "values", "line"),
    [
        ("Typed", {"count": "x"}, "part.count=x: accepted is an integer"),
        ("Typed", {"count": True}, "part.count=true: accepted is an integer"),
        ("Typed", {"count": None}, "part.count=null: accepted is an integer"),
        ("Typed", {"count": 1, "rate": float("nan")}, "part.rate=nan: accepted is a number"),
        ("Typed", {"count": 1, "mode": "up"}, "part.mode=up: accepted is min, max"),
        ("Typed", {"count": 1, "sizes": 5}, "part.sizes=5: accepted is a list of integers"),
        ("Typed", {"count": 1, "sizes": "5"}, "part.sizes=5: accepted is a list of integers"),
        ("Typed", {"count": 1, "sizes": [1, "x"]}, "part.sizes=[1, x]: accepted is a list of integers"),
        ("Typed", {"count": 1, "name": 5}, "part.name=5: accepted is text, or null"),
        ("Typed", {"count": 101}, "part.count=101: Invalid count value: 101"),
        ("Typed", {}, "part.count=???: a value is required"),
        ("Typed", {"count": 1, "foo": 2}, "part.foo=2: no such argument; accepted are count, rate, mode, sizes, name"),
        ("Derived", {"extra": 1, "count": 1}, "part.extra=1: accepted is true or false"),
        ("Derived", {"count": "x"}, "part.count=x: accepted is an integer"),
        ("Closed", {"foo": 1}, "part.foo=1: no such argument; accepted are width"),
        ("Nothing", {}, rf"part._target_={__name__}.Nothing: "),
        ("SPEC", {}, rf"part._target_={__name__}.SPEC: "),
        ("Typed", {"count": 1, "_partial_": 5}, "part._partial_=5: accepted is true, false"),
        ("Typed", {"_args_": 5}, "part._args_=5: accepted is a list"),
    ],
)
def test_what_a_target_does_not_take_or_refuses_names_the_key(name: str, values: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        construct("part", node(name, **values))
    assert str(refused.value).startswith(line)


def test_what_a_target_takes_is_passed_on() -> None:
    assert construct("part", node("Derived", count=3, sizes=[1, 2], mode="max")).values == (3, 0.5, "max", [1, 2], None)
    assert construct("part", node("Typed", _args_=[4, 1])).values[:2] == (4, 1)
    nested = construct("part", {"_target_": "torch.nn.Sequential", "_args_": [{"_target_": "torch.nn.Linear", "_args_": [2, 3]}]})
    assert isinstance(nested[0], nn.Linear)
    assert construct("part", node("Closed"), {"width": 5, "unknown": 1}).broken == 5


def test_a_bug_inside_a_target_keeps_its_traceback() -> None:
    with pytest.raises(IndexError):
        construct("part", node("Closed"))


def test_a_target_called_later_refuses_under_its_key() -> None:
    later = construct("model.optimizer", {"_target_": "torch.optim.AdamW", "_partial_": True, "betas": [2, 2]})
    with pytest.raises(ConfigError, match=r"^model\.optimizer\.betas=\[2, 2\]: Invalid beta parameter at index 0: 2$"):
        later([nn.Parameter(torch.zeros(1))])


def test_a_bug_in_a_module_of_one_s_own_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_broken_module.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        resolve("model.net", "my_broken_module.Net")


@pytest.mark.parametrize(
    ("value", "annotation", "does"),
    [
        (1, float, True),
        (1.0, int, False),
        ([0.9, 0.99], tuple[float, float], True),
        ([0.9], tuple[float, float], False),
        ("gloo", torch.device, True),
        ("logs", str | Path, True),
        ({"a": 1}, str | Path, False),
        (5, torch.device, False),
        (None, nn.Module, False),
        ({"a": 1}, dict[str, int], True),
        ({"a": "x"}, dict[str, int], False),
        ("adam", Callable[..., Any], False),
        ("x", list, False),
        (object(), nn.Module, True),
    ],
)
def test_what_fits_an_annotation(value: Any, annotation: Any, does: bool) -> None:
    assert fits(value, annotation) is does
    assert words(annotation)


def test_what_lightning_refuses_when_it_has_seen_the_data_names_the_key() -> None:
    settings = {"_target_": "lightning.Trainer", "val_check_interval": 3, "max_epochs": -5}
    with pytest.raises(Exception, match="max_epochs") as refused:
        Trainer(**{name: value for name, value in settings.items() if name != "_target_"}, logger=False, accelerator="cpu")
    line = refused_by_lightning(refused.value, settings)
    assert line is not None
    assert str(line).startswith("trainer.max_epochs=-5: ")
    assert refused_by_lightning(ValueError("of one's own"), settings) is None


@pytest.mark.filterwarnings("ignore")
def test_what_code_of_one_s_own_asks_of_lightning_keeps_its_traceback(tmp_path: Path) -> None:
    class Careless(LightningModule):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.log("loss", "no number")

        def configure_optimizers(self) -> None: ...

    trainer = Trainer(logger=False, accelerator="cpu", max_steps=1, default_root_dir=tmp_path, enable_checkpointing=False)
    with pytest.raises(ValueError, match="no number") as raised:
        trainer.fit(Careless(), DataLoader([0]))
    assert refused_by_lightning(raised.value, {"_target_": "lightning.Trainer"}) is None


@pytest.mark.parametrize(
    ("group", "node", "line"),
    [
        ("datamodule", {"_target_": "lightning.LightningDataModule"}, "lightning.LightningDataModule: has no `spec`"),
        ("datamodule", {"_target_": "collections.OrderedDict"}, "collections.OrderedDict: has no `spec`"),
        ("model", {"_target_": "lightning.LightningModule"}, "lightning.LightningModule: needs a model.net; accepted is a"),
    ],
)
def test_plain_lightning_code_is_told_what_is_missing(group: str, node: dict[str, Any], line: str, shipped: DictConfig) -> None:
    plan = Plan.of(shipped)
    shipped[group] = node
    with pytest.raises(ConfigError, match=rf"^{group}\._target_={line}"):
        build(shipped, plan)


class Pairs(LightningDataModule):
    """A LightningDataModule as it comes, whose batches are (x, y)."""

    spec = DataSpec((1, 8, 8), 10)

    def train_dataloader(self) -> list[Any]:
        return [[torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.long)]]

    val_dataloader = train_dataloader


def test_batches_that_are_pairs_are_told_what_they_should_be(shipped: DictConfig, tmp_path: Path) -> None:
    plan = Plan.of(shipped)
    shipped.datamodule = {"_target_": f"{__name__}.Pairs"}
    shipped.callbacks, shipped.guards, shipped.logger, shipped.run_dir = {}, {}, {}, str(tmp_path)
    shipped.trainer.enable_progress_bar = False
    datamodule, model, trainer = build(shipped, plan)
    with pytest.raises(ConfigError, match=r"^datamodule=Pairs: yields a list; accepted is a lockstep\.datamodules\.DataModule"):
        trainer.fit(model, datamodule)


def test_an_unknown_argument_of_tensorboard_s_writer_is_refused_before_it_writes(shipped: DictConfig, tmp_path: Path) -> None:
    OmegaConf.update(shipped, "logger.tensorboard.no_such_argument", 1, force_add=True)
    shipped.run_dir = str(tmp_path)
    with pytest.raises(ConfigError, match=r"^logger\.tensorboard\.no_such_argument=1: no such argument; accepted are log_dir, "):
        build(shipped, Plan.of(shipped))


def test_an_unknown_argument_of_ddp_is_refused_on_one_process_too(shipped: DictConfig) -> None:
    OmegaConf.update(shipped, "trainer.strategy.no_such_argument", 1, force_add=True)
    with pytest.raises(ConfigError, match=r"^trainer\.strategy\.no_such_argument=1: no such argument; accepted are "):
        build(shipped, Plan.of(shipped))


def test_a_checkpoint_of_another_optimizer_or_of_a_later_epoch_is_refused(shipped: DictConfig, tmp_path: Path) -> None:
    shipped.model.net = {"_target_": "lockstep.nets.MLP", "hidden": [4], "dropout": 0.0}
    shipped.ckpt_path = str(saved(tmp_path / "sgd.ckpt", changed({"optimizer._target_": "torch.optim.SGD"})))
    with pytest.raises(ConfigError, match=r"^model\.optimizer\._target_=torch\.optim\.AdamW: .* accepted is torch\.optim\.SGD"):
        build(shipped, Plan.of(shipped))
    state = torch.load(shipped.ckpt_path) | {"epoch": 11, "hyper_parameters": changed({})}
    torch.save(state, shipped.ckpt_path)
    with pytest.raises(ConfigError, match=r"^trainer\.max_epochs=10: .* is of epoch 11; accepted is as many, or -1"):
        build(shipped, Plan.of(shipped))
