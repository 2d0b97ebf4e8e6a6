"""What the ranks do: one training of one side, which leads, follows the leader step by step, or runs freely.

The leader trains as it would. Before each step a follower takes over the leader's state and makes the same step with its
own processes, batches and kernels: what then differs, differs because of these, and not of an earlier step.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, DeviceStatsMonitor, EarlyStopping, LearningRateMonitor, ProgressBar
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lockstep.build import build
from lockstep.callbacks import LearningRate, NonFinite, Pictures, Preemption, Throughput, Watchdog
from lockstep.callbacks.nonfinite import NonFiniteLoss
from lockstep.config.plan import Plan
from lockstep.parity.differences import Prints, Tensors, compare_samples, copied
from lockstep.parity.exchange import Exchange
from lockstep.parity.interventions import applied
from lockstep.parity.recorder import Observed, Recorder
from lockstep.parity.sides import Difference, Findings, Role
from lockstep.trainer.batchnorm import is_batchnorm
from lockstep.trainer.shards import part_like
from lockstep.trainer.steps import StepParts

Report = Callable[[str], None]
# What leaves something, ends a training, or only watches it.
_UNWANTED = (
    *(Checkpoint, ProgressBar, EarlyStopping, Preemption, NonFinite, Watchdog, LearningRateMonitor, DeviceStatsMonitor),
    *(LearningRate, Throughput, Pictures, StepParts),
)


def train(cfg: DictConfig, role: Role, where: tuple[Any, ...], report: Report) -> Findings:
    """One training of one side, in every rank of it. `lead` and `follow` run at the same time; `finish` trains freely,
    afterwards, and compares the weights it ends with."""
    built: Any = build(cfg, Plan.of(cfg))
    datamodule, model, trainer = built
    roles: Any = {"lead": Leader, "follow": Follower, "finish": Finisher}
    recorder = roles[role](Exchange(*where), cfg.interventions, report)
    trainer.callbacks = [*(callback for callback in trainer.callbacks if not isinstance(callback, _UNWANTED)), recorder]
    with applied(cfg.interventions, model):
        trainer.fit(model, datamodule)
        if role != "finish" and OmegaConf.select(cfg, "test"):
            trainer.test(model, datamodule, verbose=False)
    recorder.closes()
    facts = {
        "batchnorm": _has_batchnorm(model),
        "sgd": all(isinstance(optimizer, torch.optim.SGD) for optimizer in trainer.optimizers),
        "untrained": [name for name, _ in model.named_parameters() if name not in recorder.facts["trained"]],
    }
    return Findings(recorder.differences.found, recorder.facts | facts)


def builds_batchnorm(cfg: DictConfig, _: Report) -> bool:
    """Has the configured model a BatchNorm: then a larger batch is not what an accumulated one is."""
    return _has_batchnorm(build(cfg, Plan.of(cfg))[1])


def _has_batchnorm(model: torch.nn.Module) -> bool:
    return any(is_batchnorm(module) for module in model.modules())


class Leader(Recorder):
    """Trains, and tells its followers about each step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._before: Tensors = {}
        self._rates: list[list[float]] = []

    def begins(self, trainer: Trainer, model: LightningModule, what: str) -> None:
        state = model.state_dict() if what in ("step", "validation", "test") else {}
        self.facts["not tensors"] |= {name for name, value in state.items() if not isinstance(value, Tensor)}
        self._before = copied(state, keep=trainer.is_global_zero)

    def ends(self, trainer: Trainer, model: LightningModule, what: str, observed: Observed) -> None:
        if "learning rate" in observed:
            self._rates.append(_rates(observed))
        if not all(loss.isfinite() for loss in observed.get("loss", {}).values()):
            raise NonFiniteLoss(f"at step {trainer.global_step - 1} the loss is not finite: there is nothing to compare")
        if trainer.is_global_zero:
            self.exchange.send({"what": what, "state": self._before, "observed": observed})

    def closes(self) -> None:
        if self.exchange.number:
            self.exchange.end({"weights": self.end, "rates": self._rates})


class Follower(Recorder):
    """Makes each of the leader's steps from the leader's state, and notes how far it comes to lie from it."""

    _leader: dict[str, Any] | None = None
    _is_lost = False  # the leader is in a step where this side validates, or the other way round

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.facts |= {"rates": [], "repeated": set(), "samples left out": set(), "length": {}}

    def begins(self, trainer: Trainer, model: LightningModule, what: str) -> None:
        if self._is_lost:
            return
        self._leader = self.exchange.receive()
        if self._leader is None or self._leader["what"] != what:
            self._is_lost = trainer.should_stop = True
            self.differences.found.append(Difference(self._at(what), "steps per epoch", "", math.inf))
            self.exchange.leave()
            return
        state, parameters = self._leader["state"], dict(model.named_parameters())
        # what a step has made of its buffers is what is then validated with
        taken_over = model.state_dict() if what == "step" else parameters
        with torch.no_grad():
            for name in taken_over.keys() & state.keys():
                taken_over[name].copy_(part_like(state[name], taken_over[name]))

    def rates(self) -> list[float]:
        return _rates(self._leader["observed"]) if self._leader else []

    def ends(self, trainer: Trainer, model: LightningModule, what: str, observed: Observed) -> None:
        if self._is_lost:
            return
        assert self._leader is not None
        if trainer.is_global_zero:
            self._compare(self._at(what), self._leader["observed"], observed)
        trainer.strategy.barrier()  # all have read
        if trainer.is_global_zero:
            self.exchange.acknowledge()
        self.exchange.number += 1

    def _compare(self, step: int, ours: Observed, theirs: Observed) -> None:
        for quantity in dict.fromkeys([*ours, *theirs]):
            a, b = ours.get(quantity, {}), theirs.get(quantity, {})
            if quantity.endswith("samples"):
                self._compare_samples(step, quantity, a, b)
            else:
                self.differences.add(step, quantity, a, b, absent_is_zero=quantity == "gradients")
        self.facts["rates"] += zip(_rates(ours), _rates(theirs), strict=False)

    def _compare_samples(self, step: int, quantity: str, ours: Prints, theirs: Prints) -> None:
        distance, left_out, is_longer = compare_samples(ours, theirs)
        self.facts["samples left out"] |= left_out
        self.facts["length"][quantity] = max((len(axes[0][1]) for axes in ours.values()), default=0)
        if is_longer:
            self.facts["repeated"].add(quantity)
        if distance is not None:
            self.differences.found.append(Difference(step, quantity, "", distance))

    def _at(self, what: str) -> int:
        return max(0, self._number - (what != "step"))

    def closes(self) -> None:
        self.exchange.leave()


class Finisher(Recorder):
    """Trains freely, and compares the weights it ends with."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end = self.exchange.ended()

    def rates(self) -> list[float]:
        return self._end["rates"][self._number] if self._number < len(self._end["rates"]) else []

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        self.differences.add(max(0, self._number - 1), "weights", self._end["weights"], self.end)

    def closes(self) -> None: ...


def _rates(observed: Observed) -> list[float]:
    return [float(rate) for rate in observed.get("learning rate", {}).values()]
