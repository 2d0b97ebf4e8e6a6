"""What the ranks do: a training of one side, which leads, follows the leader step by step, or runs freely.

The leader trains as it would. Before each step a follower takes over the leader's state and makes the same step with its
own processes, batches and kernels: what then differs, differs because of these, and not of an earlier step.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_class
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, DeviceStatsMonitor, EarlyStopping, LearningRateMonitor, ProgressBar
from omegaconf import OmegaConf
from torch import Tensor

from lockstep.build import build
from lockstep.callbacks import Preemption, Watchdog
from lockstep.config.plan import Plan
from lockstep.errors import NamedFailure
from lockstep.extras.dtensors.dtensors import shard_like
from lockstep.extras.equivalence.own_batchnorm import BatchNormCalls, takes_own_statistics
from lockstep.extras.monitors.monitor import Monitor
from lockstep.extras.parity.differences import Differences, Fingerprints, Tensors, all_ranks, compare_samples, copy_tensors
from lockstep.extras.parity.interventions import applied, time_first
from lockstep.extras.parity.larger_batches import take_larger_batches
from lockstep.extras.parity.recorder import BatchRecorder, Observed, Recorder, divide, state
from lockstep.extras.parity.records import Records
from lockstep.extras.parity.sides import AT_THE_END, Difference, Findings, Training
from lockstep.extras.plain_lightning.callback import PlainLightning
from lockstep.extras.plain_lightning.guard import PlainLightningGuard
from lockstep.trainer.batchnorm import is_batchnorm

# What leaves something, ends a training, or only watches it.
_UNWANTED = Checkpoint | ProgressBar | EarlyStopping | Preemption | Watchdog | DeviceStatsMonitor
_UNWANTED |= LearningRateMonitor | Monitor


def train(training: Training, patience: float) -> Findings:
    """`lead` and `follow` run at the same time; `finish` trains freely, afterwards, and compares the state it ends with; `alone`
    compares nothing. Another extra's role is the path of its own Recorder."""
    cfg: Any = OmegaConf.create(training.config)
    plan = Plan(**training.plan)
    datamodule, model, trainer = build(cfg, plan)
    kinds = {"lead": Leader, "follow": Follower, "finish": Finisher, "alone": BatchRecorder}
    kind: Any = kinds.get(training.role) or get_class(training.role)
    PlainLightningGuard(cfg.seed).attach(trainer, model, datamodule)
    recorder = kind(cfg.interventions, Records(Path(training.folder), training.subfolder))
    wanted = _wanted(trainer.callbacks)  # pyright: ignore[reportAttributeAccessIssue]
    own = model.configure_callbacks
    model.configure_callbacks = lambda: _wanted(own())
    trainer.callbacks = [*wanted, recorder, Watchdog(patience, 3 * patience)]  # pyright: ignore[reportAttributeAccessIssue]
    if times := cfg.interventions.get("larger_batches"):
        take_larger_batches(datamodule or model, times)
    calls = BatchNormCalls()
    with applied(cfg.interventions, model, plan.world_size):
        with calls:
            trainer.fit(model, datamodule)
        if training.role not in ("finish", "alone") and cfg.test:
            trainer.test(model, datamodule, verbose=False)
    recorder.close(trainer)
    facts = {
        "batchnorm": any(map(is_batchnorm, model.modules())),
        "own batchnorm": any(is_batchnorm(layer) and takes_own_statistics(layer) for layer in model.modules()),
        "batch_norm": calls.seen,
        "time first": bool(time_first(model)),
        "batch size": next((c.facts().get("batch_size") for c in wanted if isinstance(c, PlainLightning)), None),
        "said": [line for callback in wanted for line in getattr(callback, "causes", ())],
        "sgd": all(isinstance(optimizer, torch.optim.SGD) for optimizer in trainer.optimizers),
        "untrained": [name for name, _ in model.named_parameters() if name not in recorder.facts["trained"]],
    }
    return Findings(recorder.differences.all, recorder.facts | facts)


def _wanted(callbacks: Any) -> list[Any]:
    several = callbacks if isinstance(callbacks, Sequence) else [callbacks]
    stays = (callback for callback in several if not isinstance(callback, _UNWANTED))
    return [callback for callback in stays if not hasattr(callback, "skipped_step")]  # of the guard that looks at the loss


class Leader(Recorder):
    """Trains, and leaves a record of each step for its followers."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._before: Tensors = {}
        self._rates: list[list[float]] = []

    def begins(self, trainer: Trainer, model: LightningModule, what: str) -> None:
        before = state(model) if what != "epoch" else {}
        self.facts["not tensors"] |= {name for name, value in before.items() if not isinstance(value, Tensor)}
        self._before = copy_tensors(before, keep=trainer.is_global_zero)

    def ends(self, trainer: Trainer, model: LightningModule, what: str, observed: Observed) -> None:
        if "learning rate" in observed:
            self._rates.append(_rates(observed))
        if not all(loss.isfinite() for loss in observed.get("loss", {}).values()):
            raise NamedFailure(f"at step {trainer.global_step - 1} the loss is not finite: there is nothing to compare")
        if trainer.is_global_zero:
            self.records.write({"what": what, "state": self._before, "observed": observed})

    def close(self, trainer: Trainer) -> None:
        if trainer.is_global_zero:
            self.records.write_end({"state": self.end, "rates": self._rates})


class Follower(Recorder):
    """Makes each of the leader's steps from the leader's state, and notes how far it comes to lie from it.

    What a step has made of buffers is compared when the next one begins (or a validation, a test, the end): Lightning calls the
    module's own hooks, which may change them, after the callbacks'.
    """

    _leader: dict[str, Any] | None = None
    _is_lost = False  # the leader is in a step where this side validates, or the other way round

    def begins(self, trainer: Trainer, model: LightningModule, what: str) -> None:
        if self._is_lost:
            return
        self._leader = self.records.read()
        if self._leader is None or self._leader["what"] != what:
            self._is_lost = trainer.should_stop = True
            self.differences.all.append(Difference(self._step(what), "steps per epoch", "", math.inf))
            trainer.strategy.barrier()  # all have read
            if trainer.is_global_zero:
                self.records.leave()
        elif what != "epoch":
            self._compare_buffers(trainer, model)
            self._take_over(self._leader["state"], model, what)

    def _compare_buffers(self, trainer: Trainer, model: LightningModule) -> None:
        assert self._leader is not None
        buffers = copy_tensors(divide(model, state(model))[1], keep=trainer.is_global_zero)
        if trainer.is_global_zero:
            reference = divide(model, self._leader["state"])[1]
            self.differences.add(max(0, self.number - 1), "buffers", reference, buffers, by_entry=True)

    def _take_over(self, state: Tensors, model: LightningModule, what: str) -> None:
        """What a step has made of its buffers is what is then validated with. A tensor of another shape stays as it is."""
        own = model.state_dict() if what == "step" else dict(model.named_parameters())
        with torch.no_grad():
            for name in own.keys() & state.keys():
                if isinstance(own[name], Tensor) and own[name].shape == state[name].shape:
                    own[name].copy_(shard_like(state[name], own[name]))

    def reference_rates(self) -> list[float]:
        return _rates(self._leader["observed"]) if self._leader else []

    def ends(self, trainer: Trainer, model: LightningModule, what: str, observed: Observed) -> None:
        if self._is_lost:
            return
        assert self._leader is not None
        trainer.strategy.barrier()  # all have read
        if trainer.is_global_zero:
            self._compare(self._step(what), self._leader["observed"], observed)
            self.records.remove()
        self.records.number += 1

    def _compare(self, step: int, reference: Observed, other: Observed) -> None:
        for quantity in dict.fromkeys([*reference, *other]):
            a, b = reference.get(quantity, {}), other.get(quantity, {})
            if quantity.endswith("samples"):
                self._compare_samples(step, quantity, a, b)
            else:
                self.differences.add(step, quantity, a, b, absent_is_zero=quantity == "gradients")
        self.facts["rates"] += zip(_rates(reference), _rates(other), strict=False)

    def _compare_samples(self, step: int, quantity: str, reference: Fingerprints, other: Fingerprints) -> None:
        distance, left_out, is_longer = compare_samples(reference, other)
        self.facts["samples left out"] |= left_out
        self.facts["length"][quantity] = max((len(axes[0][1]) for axes in reference.values()), default=0)
        if is_longer:
            self.facts["repeated"].add(quantity)
        if distance is not None:
            self.differences.all.append(Difference(step, quantity, "", distance))

    def _step(self, what: str) -> int:
        return max(0, self.number - (what != "step"))

    def close(self, trainer: Trainer) -> None:
        if trainer.is_global_zero and not self._is_lost:
            self.records.leave()


class Finisher(Recorder):
    """Trains freely, and compares the state it ends with."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end = self.records.read_end()

    def reference_rates(self) -> list[float]:
        return self._end["rates"][self.number] if self.number < len(self._end["rates"]) else []

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        (weights, buffers), (own, own_buffers) = divide(pl_module, self._end["state"]), divide(pl_module, self.end)
        differences, step = Differences(), max(0, self.number - 1)
        differences.add(step, AT_THE_END[0], weights, own, by_entry=True)
        everyone = all_ranks(differences.all)  # whose weights are to be the same
        self.differences.all += [max(same, key=lambda one: one.value) for same in zip(*everyone, strict=True)]
        self.differences.add(step, AT_THE_END[1], buffers, own_buffers, by_entry=True)


def _rates(observed: Observed) -> list[float]:
    return [float(rate) for rate in observed.get("learning rate", {}).values()]
