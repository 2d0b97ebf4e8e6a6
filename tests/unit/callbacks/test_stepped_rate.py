"""What is recorded of the learning rate is what the optimizer has made its steps with."""

from pathlib import Path

from in_process import trained
from lightning import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from lockstep.runs.results import collect_facts


class Rates(Callback):
    """Those of the optimizer when it is about to step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        self.seen.append(optimizer.param_groups[0]["lr"])


def test_the_highest_and_the_last_rate_of_a_warm_up_are_recorded(tmp_path: Path) -> None:
    rates = Rates()
    options = ("model.lr_scheduler.warmup_steps=3", "trainer.accumulate_grad_batches=2")
    _, trainer = trained(tmp_path, "model/lr_scheduler=cosine", *options, extra=[rates])
    facts = collect_facts(trainer)
    assert len(set(rates.seen)) > 3
    assert (facts["lr"], facts["lr_last"]) == (max(rates.seen), rates.seen[-1])
