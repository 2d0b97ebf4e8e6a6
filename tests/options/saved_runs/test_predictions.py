"""Predictions of a module's predict_step, for each batch of predict_dataloader."""

from pathlib import Path

import pytest
import torch
from commands import PLAIN, ROOT, python, train

pytestmark = pytest.mark.slow
MINE = (PLAIN, "model=mine", "datamodule=mine")


def test_what_a_module_predicts_is_kept(tmp_path: Path) -> None:
    done = train(*MINE, "optimized_metric=val_acc", "debug=fast", "hydra.run.dir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = python(ROOT / "scripts" / "predict.py", "run", "datamodule.batch_size=33", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("The predictions: run/predictions.pt\n")
    batches = torch.load(tmp_path / "run" / "predictions.pt", weights_only=True)
    assert [len(batch["class"]) for batch in batches] == [33] * 6
