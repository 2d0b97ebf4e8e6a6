"""Unknown keys, and text for numbers, made from the composed config: each ends with one line naming the key, with code 2, and
leaves no more than a directory with that reason."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import LONG, ROOT, python, runs
from omegaconf import DictConfig
from PIL import Image

from lockstep.runs.composition import compose

EVERY = 11  # of some 150 lines
SHORT = ("debug=fast", "trainer=cpu", "trainer.max_steps=1", "trainer.enable_progress_bar=false")
REGRESSION = ("optimized_metric=val/loss", "optimized_mode=min")
# A key is tried in the first of these that has it.
BASES: tuple[tuple[str, ...], ...] = (
    ("model=mlp", "logger=csv"),
    ("logger=tensorboard",),
    (
        *("model=cnn", "model/optimizer=sgd", "model/lr_scheduler=cosine", "callbacks=[default,early_stopping]"),
        *("datamodule=synthetic_images", "datamodule.length=256", "datamodule.val_length=64", "datamodule.test_length=64"),
    ),
    ("model=linear", "model/lr_scheduler=plateau", "datamodule=random_regression", "callbacks=ema", *REGRESSION),
    ("model=mlp", "model/adapt=lora", "callbacks=freeze", "callbacks.freeze.match=lora_up"),
    ("model=mlp", "datamodule/curriculum=root"),
    ("model=resnet18", "model/optimizer=adam", "model/lr_scheduler=one_cycle", "trainer/communication=fp16"),
    ("model/lr_scheduler=step", "datamodule=image_folder", "datamodule.data_dir=pictures", "datamodule.batch_size=2"),
    (
        *("model=gpt_nano", "datamodule=text", f"datamodule.paths=[{ROOT}/README.md]", *REGRESSION),
        *("datamodule.batch_size=2", "datamodule.context=16"),
    ),
)
UNCHECKED = (
    "default_max_epochs",
    "model.lr_scheduler.",
    "trainer.strategy.bucket_cap_mb",
)
NAMED_BY_USERS = ("model.torchmetrics", "model.param_groups")  # whose entries have names of the user's choice


def lines() -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield overrides that fit together, one that is wrong with them, and the key that its refusal names."""
    seen = {"run_dir"}
    for base in BASES:
        for key, value in walk(compose(*SHORT, *base)):
            if key not in seen:
                if isinstance(value, int | float) and not isinstance(value, bool) and not key.startswith(UNCHECKED):
                    yield base, f"{key}=x", key
                if isinstance(value, DictConfig):
                    yield base, f"{key}.no_such_key=1", f"{key}.no_such_key"
                    yield base, f"+{key}.no_such_key=1", key if key in NAMED_BY_USERS else f"{key}.no_such_key"
            seen.add(key)


def walk(cfg: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in cfg.items():
        yield f"{prefix}{name}", value
        if isinstance(value, DictConfig):
            yield from walk(value, f"{prefix}{name}.")


@pytest.mark.slow
@pytest.mark.timeout(LONG)
def test_bad_command_lines_end_with_one_line_and_that_reason(tmp_path: Path) -> None:
    for number in range(24):
        folder = tmp_path / "pictures" / "abc"[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (10 * number, 0, 0)).save(folder / f"{number}.png")
    before = sorted(tmp_path.rglob("*"))
    problems = []
    for base, line, key in list(lines())[::EVERY]:
        done = python(ROOT / "train.py", *SHORT, *base, line, cwd=tmp_path)
        subject, _, accepted = done.stderr.strip().partition(": ")
        is_named = key in subject or (key.startswith(subject) and key.rpartition(".")[2] in accepted)
        is_one_line = done.stderr.count("\n") == 1 and is_named and accepted
        reasons = [json.loads((run / "status.json").read_text())["reason"] for run in runs(tmp_path)]
        shutil.rmtree(tmp_path / "logs", ignore_errors=True)
        is_said = all(reason in done.stderr for reason in reasons) and sorted(tmp_path.rglob("*")) == before
        if done.returncode != 2 or not is_one_line or not is_said:
            problems.append((base, line, done.returncode, done.stderr))
    assert problems == []
