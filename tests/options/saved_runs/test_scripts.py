"""What can be done with a run directory."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from commands import ROOT, python, train
from PIL import Image
from sklearn.datasets import load_digits

from lockstep.models.from_checkpoint import load_model

pytestmark = pytest.mark.slow
EVALUATE, PREDICT = ROOT / "scripts" / "evaluate.py", ROOT / "scripts" / "predict.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a trained run, of a net with BatchNorm and a standardised input."""
    folder = tmp_path_factory.mktemp("trained")
    options = ("model=cnn", "model.net.width=8", "model/lr_scheduler=constant", "datamodule.augment=null")
    options += ("trainer.max_epochs=4", "datamodule.standardize=true")
    done = train(*options, "hydra.run.dir=run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run"


def test_one_checkpoint_gives_the_same_counts_on_any_number_of_processes(run: Path) -> None:
    results = []
    for devices in (1, 2):
        done = python(EVALUATE, run, f"trainer.devices={devices}", "datamodule.batch_size=32", cwd=run.parent)
        assert done.returncode == 0, done.stderr
        assert f"The weights are those of {run}/checkpoints/best.ckpt." in done.stdout
        assert done.stdout.partition("\n")[0].endswith("; batches of 32")
        assert "ended by" not in done.stdout
        newest = max((run / "evaluations").iterdir(), key=lambda folder: folder.stat().st_mtime)
        results.append(json.loads((newest / "metrics.json").read_text()))
    trained = json.loads((run / "metrics.json").read_text())["metrics"]
    assert [result["world_size"] for result in results] == [1, 2]
    for result in results:
        assert round(result["metrics"]["test/acc"] * 360) == round(trained["test/acc"] * 360)
        assert result["metrics"]["test/loss"] == pytest.approx(trained["test/loss"], abs=1e-5)


def test_a_wrong_evaluation_is_refused_and_leaves_nothing(run: Path, tmp_path: Path) -> None:
    before = {path for path in run.rglob("*") if "evaluations" in path.parts}
    for arguments, line in {
        (str(tmp_path),): f"RUN_DIR={tmp_path}: no run is there, since it has no .hydra/config.yaml; use the directory of a run",
        (str(run), "trainer.divices=2"): f"trainer.divices=2: unknown key; see {run}/.hydra/config.yaml",
        (str(run), "--checkpoint", "nowhere.ckpt"): "init_from=nowhere.ckpt: no such file",
    }.items():
        done = python(EVALUATE, *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(line)
        assert done.stderr.count("\n") == 1
    assert {path for path in run.rglob("*") if "evaluations" in path.parts} == before


def test_predictions_of_files_and_folders_are_a_csv(run: Path, tmp_path: Path) -> None:
    digits: Any = load_digits()
    (tmp_path / "in" / "more").mkdir(parents=True)
    for i in range(20):
        pixels = (digits.images[i] * 255 / 16).round().astype(numpy.uint8)
        Image.fromarray(pixels).save(tmp_path / "in" / ("more" if i % 2 else "") / f"{i}.png")
    (tmp_path / "out.csv").write_text("of yesterday")
    done = python(PREDICT, run, "in", "datamodule.batch_size=7", "--output", "out.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
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
