"""From a checkpoint back to a model, and what a checkpoint that does not fit is told."""

from pathlib import Path

import pytest
import torch
from bitwise import differences
from in_process import prepared, save_config

from lockstep.checkpointing import read_checkpoint
from lockstep.datamodules import DataSpec
from lockstep.errors import ConfigError
from lockstep.models import Classifier
from lockstep.models.from_checkpoint import load_model
from lockstep.models.from_config import build_model
from lockstep.runs.results import logged_numbers

Trained = tuple[Path, Classifier, dict[str, float]]  # its run directory, and what it has logged


MLP = ("trainer=cpu", "model.net.hidden=[16]", "logger=csv", "++callbacks.pictures=null")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The run directory of an epoch of two batches on standardised digits, and the model as it was at its end."""
    run_dir = tmp_path_factory.mktemp("trained")
    limits = ("trainer.max_epochs=1", "trainer.limit_train_batches=2", "trainer.enable_progress_bar=false")
    datamodule, model, trainer = prepared(run_dir, *MLP, *limits, "datamodule.standardize=true", base=())
    trainer.fit(model, datamodule)
    save_config(run_dir, *MLP)
    return run_dir, model, logged_numbers(trainer)


def test_a_model_comes_back_from_its_checkpoint(trained: Trained) -> None:
    run_dir, model, _ = trained
    loaded = load_model(run_dir / "checkpoints" / "best.ckpt")
    assert type(loaded) is Classifier
    assert not loaded.training
    assert not differences(loaded.state_dict(), model.state_dict())  # the scaler's mean and scale are among them
    assert float(loaded.preprocess.mean) != 0
    images = torch.rand(5, 1, 8, 8)
    assert torch.equal(loaded.predict(images), model.predict(images))
    assert loaded.spec == model.spec
    assert loaded.spec.class_names == tuple("0123456789")


@pytest.mark.parametrize("name", ["best", "last"])
def test_a_checkpoint_holds_plain_containers_under_lightning_s_keys(name: str, trained: Trained) -> None:
    run_dir, _, metrics = trained
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
    spec = {"input_shape": (1, 8, 8), "num_outputs": 10, "class_names": tuple("0123456789")}
    assert checkpoint["hyper_parameters"]["spec"] == spec
    assert checkpoint["hyper_parameters"]["model"]["net"]["hidden"] == [16]
    assert checkpoint["metrics"]["val/acc"] == pytest.approx(metrics["val/acc"])


def test_a_model_config_builds_the_model_again(trained: Trained) -> None:
    model_config = read_checkpoint("checkpoint", trained[0] / "checkpoints" / "last.ckpt")["hyper_parameters"]
    again = build_model(model_config["model"], DataSpec(**model_config["spec"]), lr=0.125)
    assert isinstance(again, Classifier)
    assert again.make_optimizer(again.parameters()).param_groups[0]["lr"] == 0.125
    assert model_config["model"]["optimizer"]["lr"] == 2e-3  # stays as it was


def test_init_from_takes_only_the_weights(trained: Trained, tmp_path: Path) -> None:
    run_dir, model, _ = trained
    _, started, trainer = prepared(tmp_path, *MLP, "seed=9", f"init_from={run_dir}/checkpoints/best.ckpt", base=())
    assert not differences(started.state_dict(), model.state_dict())
    assert trainer.global_step == 0


def test_a_head_of_another_shape_is_left_out_when_asked_for_and_what_was_taken_is_listed(
    trained: Trained, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir, model, _ = trained
    head = ["seed=9", "model.net.hidden=[16,4]", f"init_from={run_dir}/checkpoints/best.ckpt"]
    drawn = prepared(tmp_path, *MLP, *head[:2], base=())[1].state_dict()
    with caplog.at_level("INFO"):
        started = prepared(tmp_path, *MLP, *head, "init_without='layers.[47]'", base=())[1].state_dict()
    taken = {"net.layers.1.weight", "net.layers.1.bias", "preprocess.mean", "preprocess.scale"}
    for name, tensor in started.items():
        assert torch.equal(tensor, model.state_dict()[name] if name in taken else drawn[name])
    (line,) = [record.message for record in caplog.records if record.message.startswith("init_from")]
    others = "net.layers.4.bias, net.layers.4.weight, net.layers.7.bias, net.layers.7.weight"
    assert line.endswith(f": loaded {', '.join(sorted(taken))}; not loaded: {others}")
    with pytest.raises(ConfigError, match=r"Missing key\(s\) in state_dict: \"net\.layers\.7"):
        prepared(tmp_path, *MLP, *head, "init_without=layers.4", base=())
    with pytest.raises(ConfigError, match=r"^init_without=xyz: is found in no name; use part of one such as net\.layers"):
        prepared(tmp_path, *MLP, head[2], "init_without=xyz", base=())


def test_a_checkpoint_of_another_model_is_refused_naming_the_tensor(trained: Trained, tmp_path: Path) -> None:
    path = trained[0] / "checkpoints" / "best.ckpt"
    with pytest.raises(ConfigError, match=rf"^init_from={path}: of another model: .*size mismatch for net.layers.1.bias"):
        prepared(tmp_path, *MLP, "model.net.hidden=[8]", f"init_from={path}", base=())


def test_a_tensor_that_one_side_lacks_is_named(trained: Trained, tmp_path: Path) -> None:
    state = dict(trained[1].state_dict()) | {"net.surplus": torch.zeros(1)}
    del state["net.layers.1.weight"]
    path = tmp_path / "edited.ckpt"
    torch.save({"state_dict": state}, path)
    named = r'Missing key.* "net\.layers\.1\.weight"\. Unexpected key.* "net\.surplus"'
    with pytest.raises(ConfigError, match=rf"^init_from={path}: of another model: .*{named}"):
        prepared(tmp_path, *MLP, f"init_from={path}", base=())


def test_a_file_of_tensors_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.ckpt"
    torch.save({"weight": torch.zeros(1)}, path)
    with pytest.raises(ConfigError, match=rf"^init_from={path}: not a Lightning checkpoint: it has no state_dict$"):
        prepared(tmp_path, *MLP, f"init_from={path}", base=())
