"""What the ranks do: one training of one side, which leads, follows the leader step by step, or runs freely.

The leader trains as it would. Before each step a follower takes over the leader's state and makes the same step with its
own processes, batches and kernels: what then differs, differs because of these, and not of an earlier step.
"""

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Checkpoint, DeviceStatsMonitor, EarlyStopping, LearningRateMonitor, ProgressBar
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lockstep.build import build
from lockstep.callbacks import LearningRate, NonFinite, Pictures, PlainLightning, Preemption, Throughput, Watchdog
from lockstep.callbacks.nonfinite import NonFiniteLoss
from lockstep.config.plan import Plan
from lockstep.extras.parity.differences import Differences, Prints, Tensors, compare_samples, copied, difference, of_all_ranks
from lockstep.extras.parity.exchange import Exchange
from lockstep.extras.parity.interventions import applied, time_first
from lockstep.extras.parity.larger_batches import take_larger_batches
from lockstep.extras.parity.recorder import Observed, Recorder, divided, state_of
from lockstep.extras.parity.sides import AT_THE_END, Difference, Findings, Role
from lockstep.trainer.batchnorm import BatchNormCalls, is_batchnorm, takes_own_statistics
from lockstep.trainer.dtensors import shard_like
from lockstep.trainer.steps import StepParts

Report = Callable[[str], None]
# What leaves something, ends a training, or only watches it.
_UNWANTED = (
    *(Checkpoint, ProgressBar, EarlyStopping, Preemption, NonFinite, Watchdog, LearningRateMonitor, DeviceStatsMonitor),
    *(LearningRate, Throughput, Pictures, StepParts),
)


def train(cfg: DictConfig, role: Role, where: tuple[Any, ...], report: Report) -> Findings:
    """One training of one side, in every rank of it. `lead` and `follow` run at the same time; `finish` trains freely,
    afterwards, and compares the state it ends with."""
    built: Any = build(cfg, Plan.of(cfg))
    datamodule, model, trainer = built
    roles: Any = {"lead": Leader, "follow": Follower, "finish": Finisher}
    recorder = roles[role](Exchange(*where), cfg.interventions, report)
    trainer.callbacks = [*(callback for callback in trainer.callbacks if not isinstance(callback, _UNWANTED)), recorder]
    if times := cfg.interventions.get("larger_batches"):
        take_larger_batches(datamodule or model, times)
    calls = _looked_at(model)
    with applied(cfg.interventions, model):
        trainer.fit(model, datamodule)
        if role != "finish" and OmegaConf.select(cfg, "test"):
            trainer.test(model, datamodule, verbose=False)
    recorder.closes()
    facts = {
        "batchnorm": _has_batchnorm(model),
        "own batchnorm": [name for name, m in model.named_modules() if is_batchnorm(m) and takes_own_statistics(m)],
        "batch_norm": calls.seen,
        "time first": bool(time_first(model)),
        "batch size": next((c.facts().get("batch_size") for c in trainer.callbacks if isinstance(c, PlainLightning)), None),
        "sgd": all(isinstance(optimizer, torch.optim.SGD) for optimizer in trainer.optimizers),
        "untrained": [name for name, _ in model.named_parameters() if name not in recorder.facts["trained"]],
    }
    return Findings(recorder.differences.found, recorder.facts | facts)


def _looked_at(model: LightningModule) -> BatchNormCalls:
    """Has its first training step called torch's batch_norm, but for layers that are synchronised? It is known afterwards."""
    step, calls, looks = model.training_step, BatchNormCalls(), [True]

    def looked_at(*arguments: Any, **named: Any) -> Any:
        with calls if looks.pop() else nullcontext():
            looks.append(False)
            return step(*arguments, **named)

    model.training_step = functools.wraps(step)(looked_at)
    return calls


def counts_batches(cfg: DictConfig, _: Report) -> bool:
    """Does the configured model, or its state, change with each of several accumulated batches, as BatchNorm's does? Then
    one larger batch is not what they are. It makes one step."""
    built: Any = build(cfg, Plan.of(cfg))
    datamodule, model, trainer = built
    window = _Window()
    trainer.callbacks = [*(callback for callback in trainer.callbacks if not isinstance(callback, _UNWANTED)), window]
    trainer.fit(model, datamodule)
    return window.changes_state or _has_batchnorm(model)


class _Window(Callback):
    """Has the model's state changed from the first to the second of the batches that are accumulated? No step is between."""

    changes_state = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self._first = copied(state_of(pl_module))
        elif batch_idx == 1:
            second = copied(state_of(pl_module))
            same = [name in second and difference(value, second[name]) == 0 for name, value in self._first.items()]
            self.changes_state = not all(same) or len(second) > len(same)


def _has_batchnorm(model: torch.nn.Module) -> bool:
    return any(is_batchnorm(module) for module in model.modules())


class Leader(Recorder):
    """Trains, and tells its followers about each step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._before: Tensors = {}
        self._rates: list[list[float]] = []

    def begins(self, trainer: Trainer, model: LightningModule, what: str) -> None:
        state = state_of(model) if what != "epoch" else {}
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
            self.exchange.end({"state": self.end, "rates": self._rates})


class Follower(Recorder):
    """Makes each of the leader's steps from the leader's state, and notes how far it comes to lie from it.

    What a step has made of buffers is compared when the next one begins (or a validation, a test, the end): Lightning calls the
    module's own hooks, which may change them, after the callbacks'.
    """

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
        if what != "epoch":
            self._compare_buffers(trainer, model)
            self._take_over(self._leader["state"], model, what)

    def _compare_buffers(self, trainer: Trainer, model: LightningModule) -> None:
        assert self._leader is not None
        buffers = copied(divided(model, state_of(model))[1], keep=trainer.is_global_zero)
        if trainer.is_global_zero:
            ours = divided(model, self._leader["state"])[1]
            self.differences.add(max(0, self._number - 1), "buffers", ours, buffers, by_entry=True)

    def _take_over(self, state: Tensors, model: LightningModule, what: str) -> None:
        """What a step has made of its buffers is what is then validated with. A tensor of another shape stays as it is."""
        own = model.state_dict() if what == "step" else dict(model.named_parameters())
        with torch.no_grad():
            for name in own.keys() & state.keys():
                if isinstance(own[name], Tensor) and own[name].shape == state[name].shape:
                    own[name].copy_(shard_like(state[name], own[name]))

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
    """Trains freely, and compares the state it ends with."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end = self.exchange.ended()

    def rates(self) -> list[float]:
        return self._end["rates"][self._number] if self._number < len(self._end["rates"]) else []

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        (weights, buffers), (own, own_buffers) = divided(pl_module, self._end["state"]), divided(pl_module, self.end)
        found, step = Differences(), max(0, self._number - 1)
        found.add(step, AT_THE_END[0], weights, own, by_entry=True)
        everyone = of_all_ranks(found.found)  # whose weights are to be the same
        self.differences.found += [max(same, key=lambda one: one.value) for same in zip(*everyone, strict=True)]
        self.differences.add(step, AT_THE_END[1], buffers, own_buffers, by_entry=True)

    def closes(self) -> None: ...


def _rates(observed: Observed) -> list[float]:
    return [float(rate) for rate in observed.get("learning rate", {}).values()]
