"""The first losses of every shipped model are those that were committed; `python train.py` is as good as it was."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_losses import CONFIGS, FOLDER, losses
from omegaconf import DictConfig

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.places import CONF
from lockstep.runs.results import best_checkpoint


@pytest.mark.parametrize("model", CONFIGS)
def test_the_first_losses_are_the_golden_ones(model: str, tmp_path: Path) -> None:
    """Other processors round otherwise, by 1e-14 or so; anything else is another training."""
    golden = json.loads((FOLDER / f"{model}.json").read_text())
    assert golden["config"] == list(CONFIGS[model])
    assert losses(model, tmp_path) == pytest.approx(golden["losses"], rel=1e-9)


def test_every_whole_model_has_a_golden_file() -> None:
    """A file in conf/model that names a net is a whole model; those without are what they share."""
    whole = {path.stem for path in (CONF / "model").glob("*.yaml") if "net: ???" not in path.read_text()}
    assert whole - {"vit_b_16"} <= {*CONFIGS}  # which has 86 million parameters and is torchvision's own


@pytest.mark.slow
def test_the_default_reads_the_digits_of_writers_it_has_not_seen(compose: Callable[..., DictConfig], tmp_path: Path) -> None:
    """As well as a support vector machine does, which comes to 0.958; over five seeds it is 0.97."""
    cfg = compose("trainer=cpu", "trainer.enable_progress_bar=false", "logger=csv", run_dir=tmp_path)
    datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
    trainer.fit(model, datamodule)
    trainer.test(model, datamodule, ckpt_path=best_checkpoint(trainer), verbose=False)
    assert trainer.callback_metrics["test/acc"] >= 0.955
