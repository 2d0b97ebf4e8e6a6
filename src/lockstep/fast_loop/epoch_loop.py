"""Lightning's loop over the batches of an epoch, with a short way for the plain ones.

A small model's step is shorter than what Lightning does around it: dozens of generator-based context managers for a profiler
that is not there, each callback asked for each hook whether it has it or not, signatures inspected at every batch. The hooks of
a run are looked up once an epoch here, and a plain step then calls them and nothing else, in Lightning's order. Private
names of Lightning's are used throughout: there is no public seam around a step. tests/options/fast_loop holds the two
loops side by side, hooks, logs and checkpoints.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from lightning import Callback, LightningModule
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch.loops.optimization.automatic import Closure, ClosureResult
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.optim import Optimizer

from lockstep.fast_loop.plain import is_plain, is_replaced, saves_no_steps
from lockstep.strategies.ddp import DDP

_AROUND_A_STEP = (
    *("on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward"),
    *("on_before_optimizer_step", "on_train_batch_end"),
)
_FETCHING = f"[{_TrainingEpochLoop.__name__}].train_dataloader_next"  # as a profiler's table has it
# Lightning's words.
_NONE_OF_SEVERAL = (
    "Skipping the `training_step` by returning None in distributed training is not supported. It is recommended that you rewrite "
    "your training logic to avoid having to skip the step in the first place."
)


class NoProfiler(PassThroughProfiler):
    """Lightning's stand-in for no profiler, without a generator for each of the blocks that it does not time."""

    _NOTHING = nullcontext()

    def profile(self, action_name: str) -> Any:
        return self._NOTHING


def install_fast_loop(trainer: Any) -> None:
    """Replace the trainer's loop over batches by the one of this module, with the former's state and validation loop."""
    stock = trainer.fit_loop.epoch_loop
    trainer.fit_loop.epoch_loop = EpochLoop(trainer, stock.min_steps, stock.max_steps)
    vars(trainer.fit_loop.epoch_loop).update(vars(stock))
    if type(trainer.profiler) is PassThroughProfiler:
        trainer.profiler = NoProfiler()


class FastLoop(Callback):
    """Train with the loop of this module; `guards.fast_loop=null` leaves Lightning's own."""

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and not isinstance(trainer.fit_loop.epoch_loop, EpochLoop):
            install_fast_loop(trainer)


class EpochLoop(_TrainingEpochLoop):
    """Lightning's own loop, except for plain steps: automatic optimization by one of torch's optimizers or of this package's,
    without accumulation, a profiler, or a gradient scaler, on one device or under DDP, by a model that leaves Lightning's way of
    stepping as it is.

    Lightning's own tests have the same results with it (benchmarks/lightning_suite.md); docs/speed.md says what a plain
    step leaves out. Callbacks, hooks and a Trainer's settings are looked up once an epoch, and not again within it.
    """

    _plain: "PlainStep | None" = None

    def _on_before_fetch(self) -> None:
        trainer: Any = self.trainer
        trainer.profiler.start(_FETCHING)

    def _on_after_fetch(self) -> None:
        trainer: Any = self.trainer
        trainer.profiler.stop(_FETCHING)

    def on_run_start(self, data_fetcher: Any) -> None:
        super().on_run_start(data_fetcher)
        trainer: Any = self.trainer
        self._plain = None
        if isinstance(trainer.profiler, NoProfiler) and is_plain(trainer, data_fetcher):
            self._plain = PlainStep(self)

    @property
    def global_step(self) -> int:  # callbacks ask for it several times a step
        return super().global_step if self._plain is None else self._plain.steps.step.total.completed

    def advance(self, data_fetcher: Any) -> None:
        if self._plain is None or self._restarting:
            super().advance(data_fetcher)
        else:
            self._plain.advance(data_fetcher)

    def on_advance_end(self, data_fetcher: Any) -> None:
        plain = self._plain
        if plain is None or self._restarting or self._skip_next_val or plain.may_end_something():
            super().on_advance_end(data_fetcher)
        else:
            self._batches_that_stepped += 1

    @property
    def done(self) -> bool:
        plain = self._plain
        if plain is not None and not self._restarting and not plain.may_end_something():
            return 0 <= self.max_steps <= self.automatic_optimization.optim_progress.optimizer_steps
        return super().done


class PlainStep:
    """One batch, one step of the optimizer; values that do not change within an epoch are looked up once."""

    def __init__(self, loop: EpochLoop) -> None:
        self.loop = loop
        self.trainer: Any = loop.trainer
        self.model: LightningModule = self.trainer.lightning_module
        self.strategy: Any = self.trainer.strategy
        self.device = self.strategy.root_device
        self.precision = self.trainer.precision_plugin
        self.optimizer: Optimizer = self.trainer.optimizers[0]
        self.batches, self.steps = loop.batch_progress, loop.automatic_optimization.optim_progress.optimizer
        self.takes_batch_idx = is_param_in_hook_signature(self.model.training_step, "batch_idx", min_args=2)
        self.training_step = self._training_step()
        self.frozen = self.strategy.frozen if isinstance(self.strategy, DDP) else []
        self.hooks = {name: self._implemented(name, self.trainer.callbacks) for name in _AROUND_A_STEP}
        self.until_validation = self.batches.total if self.trainer.check_val_every_n_epoch is None else self.batches.current
        interval = self.trainer.val_check_batch
        self.validates_every = interval if isinstance(interval, int) else 1  # inf if an epoch's length is not known
        self.connector, self.results = self.trainer._logger_connector, loop._results
        self.values: list[Any] = []  # what the steps have logged last
        self.schedules = [config for config in self.trainer.lr_scheduler_configs if config.interval == "step"]

    def _training_step(self) -> Callable[..., Any]:
        if type(self.precision) is not Precision:
            return self.strategy.training_step
        wrapper = self.strategy.model  # there is no context to be entered
        through = partial(self.strategy._forward_redirection, wrapper, self.model, "training_step")
        return self.model.training_step if wrapper is self.model else through

    def _implemented(self, hook: str, callbacks: list[Callback]) -> list[Callable[..., Any]]:
        """Return the hook's implementations, the callbacks' before the model's; called with what follows trainer and module."""
        trainer, model = self.trainer, self.model
        own = [one for one in callbacks if is_replaced(hook, one, Callback) and not saves_no_steps(hook, one)]
        bound: list[Callable[..., Any]] = [partial(getattr(one, hook), trainer, model) for one in own]
        return [*bound, getattr(model, hook)] if is_replaced(hook, model, LightningModule) else bound

    def may_end_something(self) -> bool:
        """Return whether Lightning has to decide if the epoch or training ends here, or if a validation is due."""
        batches, trainer = self.batches, self.trainer
        return (
            batches.is_last_batch
            or trainer.should_stop
            or batches.current.ready == trainer.num_training_batches
            or self.until_validation.ready % self.validates_every == 0
            or trainer.received_sigterm
        )

    def advance(self, data_fetcher: Any) -> None:
        batches, validation = self.batches, self.loop.val_loop
        if validation.restarting:
            validation.restarting = False
        batch, _, _ = next(data_fetcher)
        batch_idx = batches.current.ready
        batches.is_last_batch = data_fetcher.done
        batch = self.precision.convert_input(batch)
        if type(batch) not in (list, tuple) or not all(type(part) is Tensor and part.device == self.device for part in batch):
            batch = move_data_to_device(batch, self.device)
        batches.increment_ready()
        self._start_results(batch)
        output = self._train(batch, batch_idx)
        batches.increment_processed()
        self._step_schedules(batch_idx)
        self._call("on_train_batch_end", output, batch, batch_idx)
        is_logged = self._end_results()
        batches.increment_completed()
        if is_logged:
            self.connector.update_train_step_metrics()

    def _train(self, batch: Any, batch_idx: int) -> dict[str, Any] | None:
        """Return the outputs for on_train_batch_end."""
        if batch is None:
            self.loop._warning_cache.warn("train_dataloader yielded None. If this was on purpose, ignore this warning...")
            return None
        self._call("on_train_batch_start", batch, batch_idx)
        if self.frozen:
            self.strategy.on_train_batch_start(batch, batch_idx)
            self.training_step = self._training_step()
        self.batches.increment_started()
        return self._step(batch, batch_idx)

    def _step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.steps.step.increment_ready()
        result = self._differentiate(batch, batch_idx)
        self._call("on_before_optimizer_step", self.optimizer)
        if self.trainer.gradient_clip_val is not None:
            self.model.configure_gradient_clipping(
                self.optimizer, self.trainer.gradient_clip_val, self.trainer.gradient_clip_algorithm
            )
        self.optimizer.step()
        self.steps.step.increment_completed()
        return {} if result.loss is None else result.asdict()

    def _differentiate(self, batch: Any, batch_idx: int) -> ClosureResult:
        result = self._result(batch, batch_idx)
        self._zero_grad()
        if result.closure_loss is not None:
            self._call("on_before_backward", result.closure_loss)
            result.closure_loss.backward()
            self._call("on_after_backward")
        return result

    def _result(self, batch: Any, batch_idx: int) -> ClosureResult:
        fields = self.model.__dict__
        before, fields["_current_fx_name"] = fields["_current_fx_name"], "training_step"
        output = self.training_step(batch, batch_idx) if self.takes_batch_idx else self.training_step(batch)
        fields["_current_fx_name"] = before
        if isinstance(output, Tensor):
            return ClosureResult(output)
        if output is None and self.trainer.world_size > 1:
            raise RuntimeError(_NONE_OF_SEVERAL)
        if output is None:
            Closure.warning_cache.warn("`training_step` returned `None`. If this was on purpose, ignore this warning...")
        return self.loop.automatic_optimization.output_result_cls.from_training_step_output(output)

    def _zero_grad(self) -> None:
        progress = self.steps.zero_grad
        progress.increment_ready()
        self._call("on_before_zero_grad", self.optimizer)
        progress.increment_started()
        self.optimizer.zero_grad()
        progress.increment_completed()

    def _step_schedules(self, batch_idx: int) -> None:
        progress = self.loop.scheduler_progress
        for config in self.schedules:
            if (batch_idx + 1) % config.frequency == 0:
                progress.increment_ready()
                config.scheduler.step()
                progress.increment_completed()
        if self.loop._num_ready_batches_reached():
            self.loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)

    def _start_results(self, batch: Any) -> None:
        """Start the results of `self.log` for a batch."""
        self.connector._first_loop_iter = self.connector._first_loop_iter is None
        self.results.batch, self.results.batch_size, self.results.dataloader_idx = batch, None, None

    def _end_results(self) -> bool:
        """End the results of a batch; return whether there may be values to log, as one process alone can't tell for all."""
        old, self.values = self.values, [item._forward_cache for item in self.results.values() if item.meta.on_step]
        is_logged = self.trainer.world_size > 1 or self.connector.should_update_logs or [*map(id, self.values)] != [*map(id, old)]
        if is_logged:
            self.connector.on_batch_end()
        self.results.batch = self.results.batch_size = None
        return is_logged

    def _call(self, hook: str, *arguments: Any) -> None:
        if implementations := self.hooks[hook]:
            fields = self.model.__dict__  # nn.Module.__setattr__ looks for parameters, buffers and modules first
            before, fields["_current_fx_name"] = fields["_current_fx_name"], hook
            for function in implementations:
                function(*arguments)
            fields["_current_fx_name"] = before
