"""From a config to a datamodule, a model and a trainer; and from a checkpoint back to a model."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import SingleDeviceStrategy
from omegaconf import DictConfig

from lockstep.build import build, build_model, build_trainer, load_model
from lockstep.callbacks import LastCheckpoint
from lockstep.checkpointing import read_checkpoint
from lockstep.config.plan import Plan
from lockstep.datamodules import Digits
from lockstep.errors import ConfigError
from lockstep.models import Classifier
from lockstep.trainer.batchnorm import Synchronised
from lockstep.trainer.loggers import CSVLogger
from lockstep.trainer.strategies import DDP

Built = tuple[Digits, Classifier, Any]
SMALL = ["trainer=cpu", "model=mlp", "model.net.hidden=[16]", "logger=csv", "callbacks.pictures=null"]


def built(cfg: DictConfig) -> Built:
    datamodule, model, trainer = build(cfg, Plan.of(cfg))
    assert isinstance(datamodule, Digits)
    assert isinstance(model, Classifier)
    return datamodule, model, trainer


def same_weights(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def initial(compose: Callable[..., DictConfig]) -> dict[str, torch.Tensor]:
    """The weights that seed 0 draws."""
    return built(compose(*SMALL))[1].state_dict()


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.devices=3"],
        ["trainer.devices=2", "trainer.num_nodes=2"],
        ["datamodule.batch_size=7", "datamodule.val_fraction=0.5", "datamodule.standardize=true"],
        ["model.optimizer.lr=3e-3", "model/lr_scheduler=cosine"],
        ["~callbacks.throughput", "trainer.max_epochs=1"],
    ],
)
def test_initial_weights_are_the_seed_s_whatever_else_changes(
    overrides: list[str], initial: dict[str, torch.Tensor], compose: Callable[..., DictConfig]
) -> None:
    torch.rand(17)  # nor do they depend on what was drawn before
    assert same_weights(built(compose(*SMALL, *overrides))[1].state_dict(), initial)


def test_another_seed_draws_other_weights(initial: dict[str, torch.Tensor], compose: Callable[..., DictConfig]) -> None:
    assert not same_weights(built(compose(*SMALL, "seed=1"))[1].state_dict(), initial)


def test_the_model_fits_the_data_and_has_the_planned_learning_rate(compose: Callable[..., DictConfig]) -> None:
    cfg = compose(*SMALL, "trainer.devices=4", "lr_scaling=linear", "model.optimizer.lr=1e-3")
    _, model, _ = built(cfg)
    assert model.net.layers[1].in_features == 64  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue, reportOptionalSubscript]
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    assert model.make_optimizer(model.parameters()).param_groups[0]["lr"] == 4e-3  # 1e-3 * (4 * 64) / 64


def test_the_datamodule_has_what_the_config_says(compose: Callable[..., DictConfig]) -> None:
    datamodule, _, _ = built(compose(*SMALL, "seed=5", "datamodule.batch_size=9", "datamodule.drop_last=false"))
    assert (datamodule.seed, datamodule.batch_size, datamodule.drop_last) == (5, 9, False)


# The trainer


def test_one_process_is_not_wrapped_in_ddp(compose: Callable[..., DictConfig], tmp_path: Path) -> None:
    cfg = compose(*SMALL, "trainer.max_epochs=3", "trainer.precision=64-true", run_dir=tmp_path)
    _, _, trainer = built(cfg)
    assert isinstance(trainer.strategy, SingleDeviceStrategy)
    assert trainer.world_size == 1
    assert (trainer.max_epochs, trainer.precision, trainer.default_root_dir) == (3, "64-true", str(tmp_path))


def test_several_processes_are_our_ddp_as_configured(compose: Callable[..., DictConfig]) -> None:
    options = {"timeout": 77, "find_unused_parameters": "true", "static_graph": "true", "bucket_cap_mb": 3}
    options |= {"gradient_as_bucket_view": "false", "process_group_backend": "gloo"}
    overrides = [f"trainer.strategy.{name}={value}" for name, value in options.items()]
    strategy = built(compose(*SMALL, "trainer.devices=2", *overrides))[2].strategy
    assert isinstance(strategy, DDP)
    assert strategy.planned_world_size == strategy.num_processes == strategy.cluster_environment.world_size() == 2
    assert strategy._timeout.total_seconds() == 77
    assert strategy.process_group_backend == "gloo"
    assert strategy._ddp_kwargs == {
        "find_unused_parameters": True,
        "static_graph": True,
        "bucket_cap_mb": 3,
        "gradient_as_bucket_view": False,
    }
    assert type(strategy.cluster_environment) is LightningEnvironment


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_world_is_devices_times_nodes(nodes: int, compose: Callable[..., DictConfig]) -> None:
    trainer = built(compose(*SMALL, "trainer.devices=3", f"trainer.num_nodes={nodes}"))[2]
    assert trainer.world_size == 3 * nodes
    assert trainer.strategy.planned_world_size == 3 * nodes


def test_batchnorm_is_synchronised_where_there_is_more_than_one_process(compose: Callable[..., DictConfig]) -> None:
    def is_synchronised(*overrides: str) -> bool:
        model: Any = built(compose("model=cnn", "trainer.accelerator=cpu", *overrides))[1]
        return isinstance(model.net.features[0][1], Synchronised)

    assert is_synchronised("trainer.devices=2")
    assert not is_synchronised("trainer.devices=2", "trainer.sync_batchnorm=false")
    assert not is_synchronised("trainer.devices=1")


def test_any_argument_of_lightning_s_trainer_can_be_added(compose: Callable[..., DictConfig]) -> None:
    trainer = built(compose(*SMALL, "+trainer.overfit_batches=2"))[2]
    assert trainer.overfit_batches == 2


# Callbacks and loggers


def names(objects: list[Any]) -> set[str]:
    return {type(thing).__name__ for thing in objects}


DEFAULT = {"BestCheckpoint", "LastCheckpoint", "Preemption", "NonFinite", "Watchdog"}
DEFAULT |= {"CounterBasedRandomness", "EquivalenceReport", "Throughput", "LearningRate", "Pictures", "Progress"}


def test_the_default_callbacks_are_all_there_is(compose: Callable[..., DictConfig], tmp_path: Path) -> None:
    trainer = built(compose("trainer=cpu", run_dir=tmp_path))[2]
    assert names(trainer.callbacks) == DEFAULT
    assert [type(logger) for logger in trainer.loggers] == [TensorBoardLogger]
    best = trainer.checkpoint_callback
    assert isinstance(best, ModelCheckpoint)
    assert (best.dirpath, best.monitor, best.mode) == (str(tmp_path / "checkpoints"), "val/acc", "max")
    last = next(callback for callback in trainer.callbacks if isinstance(callback, LastCheckpoint))
    assert last.path == tmp_path / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize("change", ["callbacks.{}=null", "~callbacks.{}"])
@pytest.mark.parametrize(
    ("name", "kind"), [("throughput", "Throughput"), ("pictures", "Pictures"), ("best_checkpoint", "BestCheckpoint")]
)
def test_a_callback_can_be_taken_out(name: str, kind: str, change: str, compose: Callable[..., DictConfig]) -> None:
    trainer = built(compose("trainer=cpu", change.format(name)))[2]
    assert names(trainer.callbacks) == DEFAULT - {kind}


def test_without_checkpoint_callbacks_nothing_saves(compose: Callable[..., DictConfig]) -> None:
    trainer = built(compose("trainer=cpu", "callbacks.best_checkpoint=null", "guards.checkpoint=null"))[2]
    assert names(trainer.callbacks) == DEFAULT - {"BestCheckpoint", "LastCheckpoint"}


def test_without_a_progress_bar_there_is_none(compose: Callable[..., DictConfig]) -> None:
    trainer = built(compose(*SMALL, "trainer.enable_progress_bar=false"))[2]
    assert not any(isinstance(callback, ProgressBar) for callback in trainer.callbacks)
    assert trainer.progress_bar_callback is None


@pytest.mark.parametrize(("option", "kinds"), [("csv", [CSVLogger]), ("many", [TensorBoardLogger, CSVLogger])])
def test_loggers_are_those_of_the_config(option: str, kinds: list[type], compose: Callable[..., DictConfig]) -> None:
    trainer = built(compose("trainer=cpu", f"logger={option}"))[2]
    assert [type(logger) for logger in trainer.loggers] == kinds


def test_a_trainer_that_leaves_nothing_behind(compose: Callable[..., DictConfig]) -> None:
    cfg = compose(*SMALL, "trainer.enable_progress_bar=false")
    cfg.guards, cfg.callbacks, cfg.logger = {}, {}, {}
    trainer = build_trainer(cfg, Plan.of(cfg))
    assert trainer.loggers == []
    assert not names(trainer.callbacks) & (DEFAULT | {"ModelCheckpoint"})  # pyright: ignore[reportAttributeAccessIssue]


# Checkpoints


@pytest.fixture(scope="module")
def trained(compose: Callable[..., DictConfig], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Classifier]:
    """The run directory of an epoch of two batches on standardised digits, and the model as it was at its end."""
    run_dir = tmp_path_factory.mktemp("trained")
    limits = ["trainer.max_epochs=1", "trainer.limit_train_batches=2", "trainer.enable_progress_bar=false"]
    cfg = compose(*SMALL, *limits, "datamodule.standardize=true", run_dir=run_dir)
    with warnings.catch_warnings():
        datamodule, model, trainer = built(cfg)
        trainer.fit(model, datamodule)
    return run_dir, model


def test_a_model_comes_back_from_its_checkpoint(trained: tuple[Path, Classifier]) -> None:
    run_dir, model = trained
    loaded = load_model(run_dir / "checkpoints" / "best.ckpt")
    assert type(loaded) is Classifier
    assert not loaded.training
    assert same_weights(loaded.state_dict(), model.state_dict())  # the scaler's mean and scale are among them
    assert float(loaded.preprocess.mean) != 0
    images = torch.rand(5, 1, 8, 8)
    assert torch.equal(loaded.predict(images), model.predict(images))
    assert loaded.spec == model.spec
    assert loaded.spec.class_names == tuple("0123456789")


@pytest.mark.parametrize("name", ["best", "last"])
def test_a_checkpoint_holds_plain_containers_under_lightning_s_keys(name: str, trained: tuple[Path, Classifier]) -> None:
    run_dir, model = trained
    checkpoint = torch.load(run_dir / "checkpoints" / f"{name}.ckpt", weights_only=True)
    lightnings = {"epoch", "global_step", "pytorch-lightning_version", "state_dict", "loops", "callbacks"}
    lightnings |= {"optimizer_states", "lr_schedulers", "hyper_parameters"}
    assert lightnings <= checkpoint.keys()
    finished = {"best": 0, "last": 1}[name]  # epochs: the best one is saved before its epoch is over
    assert (checkpoint["epoch"], checkpoint["global_step"]) == (finished, 2)
    assert set(checkpoint["state_dict"]) == {
        *("net.layers.1.weight", "net.layers.1.bias", "net.layers.4.weight", "net.layers.4.bias"),
        *("preprocess.mean", "preprocess.scale"),
    }
    assert checkpoint["hyper_parameters"]["spec"] == {
        "input_shape": [1, 8, 8],
        "num_outputs": 10,
        "class_names": list("0123456789"),
    }
    assert checkpoint["hyper_parameters"]["model"]["net"]["hidden"] == [16]
    assert checkpoint["metrics"]["val/acc"] == model.results["val/acc"]


def test_a_model_config_builds_the_model_again(trained: tuple[Path, Classifier]) -> None:
    model_config = read_checkpoint("checkpoint", trained[0] / "checkpoints" / "last.ckpt")["hyper_parameters"]
    again = build_model(model_config, lr=0.125)
    assert isinstance(again, Classifier)
    assert again.make_optimizer(again.parameters()).param_groups[0]["lr"] == 0.125
    assert model_config["model"]["optimizer"]["lr"] == 2e-3  # stays as it was


def test_init_from_takes_only_the_weights(trained: tuple[Path, Classifier], compose: Callable[..., DictConfig]) -> None:
    run_dir, model = trained
    _, started, trainer = built(compose(*SMALL, "seed=9", f"init_from={run_dir}/checkpoints/best.ckpt"))
    assert same_weights(started.state_dict(), model.state_dict())
    assert trainer.global_step == 0


def test_ckpt_path_is_only_checked_here_and_restored_by_lightning(
    trained: tuple[Path, Classifier], initial: dict[str, torch.Tensor], compose: Callable[..., DictConfig]
) -> None:
    _, started, _ = built(compose(*SMALL, f"ckpt_path={trained[0]}/checkpoints/last.ckpt"))
    assert same_weights(started.state_dict(), initial)


@pytest.mark.parametrize("key", ["init_from", "ckpt_path"])
@pytest.mark.parametrize(
    ("override", "difference"),
    [
        ("model.net.hidden=[8]", "net.layers.1.bias is (16,) there, (8,) in the model"),
        ("model.net.hidden=[16,16]", "net.layers.4.bias is (10,) there, (16,) in the model"),
        ("model.net.hidden=[]", "net.layers.1.bias is (16,) there, (10,) in the model"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_naming_the_tensor(
    override: str, difference: str, key: str, trained: tuple[Path, Classifier], compose: Callable[..., DictConfig]
) -> None:
    path = trained[0] / "checkpoints" / "best.ckpt"
    with pytest.raises(ConfigError) as refused:
        built(compose(*SMALL, override, f"{key}={path}"))
    assert str(refused.value) == f"{key}={path}: of another model: {difference}"


@pytest.mark.parametrize(
    ("name", "where"), [("net.layers.1.weight", "model"), ("net.surplus", "checkpoint")], ids=["lacking", "surplus"]
)
def test_a_tensor_that_one_side_lacks_is_named(
    name: str, where: str, trained: tuple[Path, Classifier], compose: Callable[..., DictConfig], tmp_path: Path
) -> None:
    state = dict(trained[1].state_dict())
    if where == "model":
        del state[name]
    else:
        state[name] = torch.zeros(1)
    path = tmp_path / "edited.ckpt"
    torch.save({"state_dict": state}, path)
    with pytest.raises(ConfigError) as refused:
        built(compose(*SMALL, f"init_from={path}"))
    assert str(refused.value) == f"init_from={path}: of another model: {name} is only in the {where}"


def test_a_file_of_tensors_that_is_no_checkpoint_is_refused(compose: Callable[..., DictConfig], tmp_path: Path) -> None:
    path = tmp_path / "weights.ckpt"
    torch.save({"weight": torch.zeros(1)}, path)
    with pytest.raises(ConfigError, match=rf"^init_from={path}: not a Lightning checkpoint: it has no state_dict$"):
        built(compose(*SMALL, f"init_from={path}"))


class NotPlain:
    """What a checkpoint of code of one's own might hold."""


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pickled.ckpt"
    torch.save({"state_dict": {}, "hyper_parameters": NotPlain()}, path)
    with pytest.raises(ConfigError, match=rf"^checkpoint={path}: not a checkpoint that loads with weights_only=True \("):
        load_model(path)


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^checkpoint={tmp_path}/none.ckpt: no such file"):
        load_model(tmp_path / "none.ckpt")
