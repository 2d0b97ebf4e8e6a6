"""Any schedule and any optimizer that a config names: torch's own, a function's of one's own, Lightning's dictionary."""

import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from in_process import BARE, prepared
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR

from lockstep.errors import ConfigError
from lockstep.models.from_config import schedule
from lockstep.models.schedules import TrainingLength

PAGE = Path(__file__).parents[3] / "docs" / "recipes.md"
TEN_EPOCHS = TrainingLength(steps=100, epochs=10, steps_per_epoch=10)
KEY = "model.lr_scheduler"
TORCH = "torch.optim.lr_scheduler"
WHEN = {"interval": "step", "frequency": 1, "monitor": None}


def optimizer(**options: Any) -> SGD:
    return SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], **options}], lr=1.0)


def lightning_s(sgd: SGD, gamma: float) -> dict[str, Any]:
    return {"scheduler": ExponentialLR(sgd, gamma), "interval": "epoch", "name": "rate"}


def of_length(sgd: SGD, training: Any) -> LambdaLR:
    return LambdaLR(sgd, lambda t: 1 - t / training.steps)


def entry(target: str, **values: Any) -> dict[str, Any]:
    return schedule(KEY, {"_target_": target, "_partial_": True, **values})(optimizer(), TEN_EPOCHS)


def test_one_of_torch_s_by_name_keeps_what_is_lightning_s() -> None:
    result = entry(f"{TORCH}.ExponentialLR", gamma=0.9, **WHEN)
    assert isinstance(result["scheduler"], ExponentialLR)
    assert (result["interval"], result["frequency"], result["monitor"]) == ("step", 1, None)


def test_a_function_s_dictionary_comes_before_the_config() -> None:
    result = entry(f"{__name__}.lightning_s", gamma=0.5, interval="step", frequency=2)
    assert (result["interval"], result["frequency"], result["name"]) == ("epoch", 2, "rate")


def test_a_function_that_asks_for_it_is_given_how_long_training_lasts() -> None:
    assert entry(f"{__name__}.of_length")["scheduler"].lr_lambdas[0](50) == 0.5


def test_arguments_that_are_missing_or_too_many_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^model\.lr_scheduler: ExponentialLR\.__init__\(\) missing 1"):
        entry(f"{TORCH}.ExponentialLR")
    with pytest.raises(ConfigError, match=r"^model\.lr_scheduler\.period=3: no such argument; use optimizer, gamma, last_epoch"):
        entry(f"{TORCH}.ExponentialLR", gamma=0.9, period=3)


def fitted(folder: Path, *options: str) -> Any:
    short = ("model=linear", "datamodule=random_regression", "trainer.max_epochs=2", "trainer.limit_train_batches=3")
    short += ("optimized_metric=train/loss",)
    datamodule, model, trainer = prepared(folder, *short, "trainer.limit_val_batches=0", *options, base=BARE)
    trainer.fit(model, datamodule)
    return trainer.optimizers[0]


def test_on_the_command_line_a_schedule_of_torch_s_trains(tmp_path: Path) -> None:
    node = f"{{_target_: {TORCH}.ExponentialLR, _partial_: true, interval: step, gamma: 0.5}}"
    options = ("~model.lr_scheduler", f"+model.lr_scheduler={node}", "model.optimizer.lr=0.1")
    assert math.isclose(fitted(tmp_path, *options).param_groups[0]["lr"], 0.1 * 0.5**6)


def blocks(language: str) -> dict[str, str]:
    """Return the page's blocks that open with a file's name, by that name."""
    result = re.findall(rf"^```{language}\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return dict(result)


def test_the_page_s_examples_do_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "schedules_of_the_page"
    (tmp_path / f"{module}.py").write_text(blocks("python")["my_schedules.py"])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, module, raising=False)
    named = {Path(name).stem: yaml.safe_load(text) for name, text in blocks("yaml").items() if name.startswith("conf/model/")}
    nodes = {name: {key: value for key, value in node.items() if key != "_partial_"} for name, node in named.items()}
    exponential = schedule(KEY, nodes["exponential"])(optimizer(), TEN_EPOCHS)
    assert exponential["interval"] == "epoch"
    assert entry(f"{module}.there_and_back")["interval"] == "step"
    values = nodes["rmsprop"].items()
    rmsprop = [f"{'' if key in ('_target_', 'lr') else '+'}model.optimizer.{key}={value}" for key, value in values]
    made = fitted(tmp_path / "run", "~model.optimizer.nesterov", "~model.optimizer.fused", *rmsprop)
    assert (type(made), made.defaults["alpha"]) == (torch.optim.RMSprop, 0.95)
