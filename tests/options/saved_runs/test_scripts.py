"""Scripts that work on a run's directory, and those that find a learning rate and a batch size."""

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import export
import numpy
import pytest
import torch
from bitwise import differences
from commands import PLAIN, ROOT, python, train
from omegaconf import DictConfig, OmegaConf
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor

from lockstep.errors import ConfigError
from lockstep.history.saved_runs import config_to_evaluate, saved_config
from lockstep.models.from_checkpoint import load_model
from lockstep.nets import MLP
from lockstep.runs.validation import validated


def test_values_are_changed_unknown_keys_and_groups_refused(tmp_path: Path, compose: Callable[..., DictConfig]) -> None:
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(compose("trainer=cpu", "test=false", "seed=3"), tmp_path / ".hydra" / "config.yaml")
    cfg = saved_config(tmp_path, ["model.net.width=4", "+model.net.depth=2"])
    assert (cfg.seed, cfg.model.net.width, cfg.model.net.depth) == (3, 4, 2)
    with pytest.raises(ConfigError, match=r"^sed=3: unknown key; see .*/.hydra/config.yaml$"):
        saved_config(tmp_path, ["sed=3"])
    with pytest.raises(ConfigError, match=r"^model=mlp: a group can't be chosen anew; set values inside it, model.NAME=VALUE$"):
        saved_config(tmp_path, ["model=mlp"])
    cfg, _ = validated(config_to_evaluate(tmp_path, [], "evaluations"))
    assert cfg.test


def test_weights_and_the_model_s_config_are_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names of the best checkpoint are one tensor."""
    shared = torch.arange(4.0).view(2, 2)
    state = {"net.a": shared, "net.b": shared, "net.c": shared.t()}
    (tmp_path / "checkpoints").mkdir()
    content = {"state_dict": state, "hyper_parameters": {"spec": {"num_outputs": 2}}, "metrics": {"val/acc": 0.5}}
    torch.save(content, tmp_path / "checkpoints" / "best.ckpt")
    monkeypatch.setattr(sys, "argv", ["export.py", str(tmp_path)])
    export.main()
    (target,) = (tmp_path / "export").iterdir()
    assert target.name == "best.safetensors"
    assert not differences(load_file(target), state)
    with safe_open(target, framework="pt") as file:
        assert json.loads(file.metadata()["model_config"]) == {"spec": {"num_outputs": 2}}


EVALUATE, PREDICT = ROOT / "scripts" / "evaluate.py", ROOT / "scripts" / "predict.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a trained run, of a net with BatchNorm and a standardised input."""
    folder = tmp_path_factory.mktemp("trained")
    options = ("model=cnn", "model.net.width=8", "model/lr_scheduler=constant", "datamodule.augment=null", "test=false")
    options += ("trainer.max_epochs=4", "datamodule.standardize=true")
    train(*options, "hydra.run.dir=run", cwd=folder, code=0)
    return folder / "run"


@pytest.mark.slow
def test_one_checkpoint_gives_the_same_counts_on_any_number_of_processes(run: Path) -> None:
    results = []
    for devices in (1, 2):
        done = python(EVALUATE, run, f"trainer.devices={devices}", "datamodule.batch_size=32", cwd=run.parent, code=0)
        assert f"The weights are those of {run}/checkpoints/best.ckpt." in done.stdout
        newest = max((run / "evaluations").iterdir(), key=lambda folder: folder.stat().st_mtime)
        results.append(json.loads((newest / "metrics.json").read_text()))
    one, two = (result["metrics"] for result in results)
    assert [result["world_size"] for result in results] == [1, 2]
    assert round(one["test/acc"] * 360) == round(two["test/acc"] * 360) > 250
    assert one["test/loss"] == pytest.approx(two["test/loss"], abs=1e-5)


@pytest.mark.slow
def test_a_wrong_evaluation_is_refused_and_leaves_nothing(run: Path, tmp_path: Path) -> None:
    before = {*run.rglob("*")}
    done = python(EVALUATE, tmp_path, cwd=tmp_path, code=2)
    assert done.stderr.startswith(f"RUN_DIR={tmp_path}: is not the directory of a run")
    done = python(EVALUATE, run, "--checkpoint", "nowhere.ckpt", cwd=tmp_path, code=2)
    assert done.stderr.startswith("init_from=nowhere.ckpt: no such file")
    assert done.stderr.count("\n") == 1
    assert {*run.rglob("*")} == before


@pytest.mark.slow
def test_predictions_of_files_and_folders_are_a_csv(run: Path, tmp_path: Path) -> None:
    digits: Any = load_digits()
    (tmp_path / "in" / "more").mkdir(parents=True)
    for i in range(20):
        pixels = (digits.images[i] * 255 / 16).round().astype(numpy.uint8)
        Image.fromarray(pixels).save(tmp_path / "in" / ("more" if i % 2 else "") / f"{i}.png")
    (tmp_path / "out.csv").write_text("of yesterday")
    python(PREDICT, run, "in", "datamodule.batch_size=7", "--output", "out.csv", cwd=tmp_path, code=0)
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out.csv"}
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20
    right = sum(int(row["prediction"]) == digits.target[int(Path(row["path"]).stem)] for row in rows)
    assert right >= 18  # these are training images
    model = load_model(run / "checkpoints" / "best.ckpt")
    pixels = torch.tensor(digits.images[0] * 255 / 16).round().to(torch.uint8)
    own = next(row for row in rows if Path(row["path"]).stem == "0")
    assert float(own["probability"]) == pytest.approx(model.predict(pixels[None, None]).max().item(), abs=1e-5)


@pytest.mark.slow
def test_what_a_module_predicts_is_kept(tmp_path: Path) -> None:
    own = (PLAIN, "model=mine", "datamodule=mine", "optimized_metric=val_acc")
    train(*own, "debug=fast", "hydra.run.dir=run", cwd=tmp_path, code=0)
    python(PREDICT, "run", "datamodule.batch_size=33", cwd=tmp_path, code=0)
    batches = torch.load(tmp_path / "run" / "predictions.pt", weights_only=True)
    assert [len(batch["class"]) for batch in batches] == [33] * 6


class Hungry(MLP):
    """A net for which more than 37 samples at once are too many."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 37:
            raise torch.OutOfMemoryError("CUDA out of memory. Planted.")
        return super().forward(x)


@pytest.mark.slow
def test_a_rate_is_suggested_for_the_global_batch(tmp_path: Path) -> None:
    options = ("model=mlp", "trainer.accelerator=cpu", "trainer.devices=2", "--to", "10", "--steps", "60")
    done = python(ROOT / "scripts" / "lr_range.py", *options, cwd=tmp_path, code=0)
    rate = done.stdout.partition("model.optimizer.lr=")[2].split()[0]
    assert 1e-5 < float(rate) < 1
    assert [path.name for path in tmp_path.iterdir()] == ["lr_range.png"]


@pytest.mark.slow
def test_the_largest_batch_is_found(tmp_path: Path) -> None:
    options = ("model=mlp", "model.net._target_=test_scripts.Hungry", "trainer.accelerator=cpu", "trainer.devices=2")
    done = python(ROOT / "scripts" / "batch_size.py", *options, cwd=tmp_path, code=0)
    assert done.stdout.splitlines()[-1] == "The largest batch that fits: datamodule.batch_size=35"  # 5% less than 37
    assert list(tmp_path.iterdir()) == []
