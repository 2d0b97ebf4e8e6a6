"""What can be done with a run directory."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from commands import PLAIN, ROOT, python, train
from PIL import Image
from sklearn.datasets import load_digits

from lockstep.models.from_checkpoint import load_model

pytestmark = pytest.mark.slow
EVALUATE, PREDICT = ROOT / "scripts" / "evaluate.py", ROOT / "scripts" / "predict.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a trained run, of a net with BatchNorm and a standardised input."""
    folder = tmp_path_factory.mktemp("trained")
    options = ("model=cnn", "model.net.width=8", "model/lr_scheduler=constant", "datamodule.augment=null", "test=false")
    options += ("trainer.max_epochs=4", "datamodule.standardize=true")
    train(*options, "hydra.run.dir=run", cwd=folder, code=0)
    return folder / "run"


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


def test_a_wrong_evaluation_is_refused_and_leaves_nothing(run: Path, tmp_path: Path) -> None:
    before = {*run.rglob("*")}
    for arguments, line in {
        (str(tmp_path),): f"RUN_DIR={tmp_path}: is not the directory of a run (it has no .hydra/config.yaml)",
        (str(run), "--checkpoint", "nowhere.ckpt"): "init_from=nowhere.ckpt: no such file",
    }.items():
        done = python(EVALUATE, *arguments, cwd=tmp_path, code=2)
        assert (done.stderr.startswith(line), done.stderr.count("\n")) == (True, 1)
    assert {*run.rglob("*")} == before


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


def test_what_a_module_predicts_is_kept(tmp_path: Path) -> None:
    done = train(
        PLAIN, "model=mine", "datamodule=mine", "optimized_metric=val_acc", "debug=fast", "hydra.run.dir=run", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    python(PREDICT, "run", "datamodule.batch_size=33", cwd=tmp_path, code=0)
    batches = torch.load(tmp_path / "run" / "predictions.pt", weights_only=True)
    assert [len(batch["class"]) for batch in batches] == [33] * 6
