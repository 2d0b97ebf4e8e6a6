"""A learning rate range test inside the test's own process."""

from pathlib import Path
from typing import Any

from in_process import plain
from lightning import Callback, LightningModule, Trainer

from lockstep.build import build
from lockstep.config.overrides import quote
from lockstep.config.plan import Plan
from lockstep.runs.composition import compose
from lockstep.runs.results import collect_facts
from lockstep.runs.validation import validated


class Steps(Callback):
    """Notes each batch's samples, and the rates with which it was made."""

    def __init__(self) -> None:
        self.ids: list[list[int]] = []
        self.rates: list[list[float]] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.ids.append(batch.ids.tolist())
        self.rates.append([group["lr"] for group in trainer.optimizers[0].param_groups])


def measured(folder: Path, *overrides: str) -> tuple[dict[str, Any], Steps]:
    """What a range test has found, and its steps."""
    fixed = ("trainer.accelerator=cpu", "trainer.enable_progress_bar=false", "guards.watchdog=null", "logger=csv")
    cfg = compose(*plain(*fixed, f"run_dir={quote(str(folder))}", *overrides), config_name="lr_range")
    validated(cfg)
    folder.mkdir(exist_ok=True)
    datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
    trainer.callbacks.append(steps := Steps())  # pyright: ignore[reportAttributeAccessIssue]
    trainer.fit(model, datamodule)
    return collect_facts(trainer)["lr_range"], steps
