"""From a checkpoint back to a model, and what a checkpoint that does not fit is told."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from built import SMALL, built, same_weights
from omegaconf import DictConfig

from lockstep.errors import ConfigError
from lockstep.models import Classifier
from lockstep.models.from_checkpoint import load_model

Trained = tuple[Path, Classifier]  # and its run directory


@pytest.fixture(scope="module")
def trained(compose: Callable[..., DictConfig], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The run directory of an epoch of two batches on standardised digits, and the model as it was at its end."""
    run_dir = tmp_path_factory.mktemp("trained")
    limits = ["trainer.max_epochs=1", "trainer.limit_train_batches=2", "trainer.enable_progress_bar=false"]
    cfg = compose(*SMALL, *limits, "datamodule.standardize=true", run_dir=run_dir)
    with warnings.catch_warnings():
        datamodule, model, trainer = built(cfg)
        trainer.fit(model, datamodule)
    return run_dir, model


def test_a_model_comes_back_from_its_checkpoint(trained: Trained) -> None:
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


def test_a_head_of_another_shape_is_left_out_when_asked_for_and_what_was_taken_is_listed(
    trained: Trained, compose: Callable[..., DictConfig], caplog: pytest.LogCaptureFixture
) -> None:
    run_dir, model = trained
    head = ["seed=9", "model.net.hidden=[16,4]", f"init_from={run_dir}/checkpoints/best.ckpt"]
    drawn = built(compose(*SMALL, *head[:2]))[1].state_dict()
    with caplog.at_level("INFO"):
        started = built(compose(*SMALL, *head, "init_without='layers.[47]'"))[1].state_dict()
    taken = {"net.layers.1.weight", "net.layers.1.bias", "preprocess.mean", "preprocess.scale"}
    for name, tensor in started.items():
        assert torch.equal(tensor, model.state_dict()[name] if name in taken else drawn[name])
    (line,) = [record.message for record in caplog.records if record.message.startswith("init_from")]
    assert f"taken: {', '.join(sorted(taken))}; not taken: net.layers.4.bias, net.layers.4.weight; as initialised: net" in line
    with pytest.raises(ConfigError, match=r"is only in the model$"):
        built(compose(*SMALL, *head, "init_without=layers.4"))
    with pytest.raises(ConfigError, match=r"^init_without=xyz: is found in no name; use part of one such as net\.layers"):
        built(compose(*SMALL, head[2], "init_without=xyz"))


def test_a_tensor_that_the_checkpoint_lacks_is_named(
    trained: Trained, compose: Callable[..., DictConfig], tmp_path: Path
) -> None:
    state, path = dict(trained[1].state_dict()), tmp_path / "edited.ckpt"
    del state["net.layers.1.weight"]
    torch.save({"state_dict": state}, path)
    with pytest.raises(ConfigError) as refused:
        built(compose(*SMALL, f"init_from={path}"))
    assert str(refused.value) == f"init_from={path}: of another model: net.layers.1.weight is only in the model"


def test_a_file_of_tensors_that_is_no_checkpoint_is_refused(compose: Callable[..., DictConfig], tmp_path: Path) -> None:
    path = tmp_path / "weights.ckpt"
    torch.save({"weight": torch.zeros(1)}, path)
    with pytest.raises(ConfigError, match=rf"^init_from={path}: not a Lightning checkpoint: it has no state_dict$"):
        built(compose(*SMALL, f"init_from={path}"))
