"""Base class of all tasks: the step, the metrics, the optimizer and its schedule."""

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from lightning import LightningModule
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

from lockstep.config.construct import naming
from lockstep.datamodules.base import DataModule, DataSpec
from lockstep.datamodules.batches import Batch
from lockstep.errors import ConfigError, config_error
from lockstep.models.preprocess import Preprocess
from lockstep.models.sample_mean import SampleMean
from lockstep.models.schedules import TrainingLength
from lockstep.runs.shares import dp_rank_and_size, is_first_of_share
from lockstep.trainer.lightning_internals import is_attached
from lockstep.trainer.steps import begins_step, ends_step, log_metrics

OptimizerFactory = Callable[..., Optimizer]
ScheduleFactory = Callable[[Optimizer, TrainingLength], dict[str, Any]]
CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]  # modes of torch.compile


class Task(LightningModule):
    """A net and what it is trained for. A subclass implements `measure`.

    Args:
        net: inputs (n, *input_shape) to outputs (n, num_outputs).
        optimizer: called with the parameters, and with fused=False where it is configured to be fused and can't be.
        lr_scheduler: called with the optimizer and the TrainingLength; returns Lightning's scheduler dictionary.
        param_groups: options of the optimizer for some parameters, see lockstep.models.param_groups.
        metrics: names that `measure` returns; logged as train/NAME, val/NAME and test/NAME.
        torchmetrics: further metrics by name, for what is no mean over samples; logged as val/NAME and test/NAME.
        model_config: plain containers from which `lockstep.models.from_checkpoint.load_model` builds this model again.
    """

    means: ClassVar[type[SampleMean]] = SampleMean  # means of `measure`'s values over the samples of an epoch

    def __init__(
        self,
        net: nn.Module,
        spec: DataSpec,
        optimizer: OptimizerFactory,
        lr_scheduler: ScheduleFactory,
        metrics: Sequence[str],
        torchmetrics: Mapping[str, Metric] | None = None,
        param_groups: Mapping[str, Mapping[str, Any]] | None = None,
        compile: bool = False,
        compile_mode: CompileMode = "default",
        channels_last: bool = False,
        model_config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if twice := sorted({*metrics} & {*(torchmetrics or {})}):
            raise config_error("model.torchmetrics", twice, "use a name that model.metrics has not")
        _initialize_lazy_layers(net, spec)
        self.net = net
        self.spec = spec
        self.preprocess = Preprocess(spec.input_shape)
        self.make_optimizer, self.make_schedule = optimizer, lr_scheduler
        self.param_groups = param_groups or {}
        self.metric_names = tuple(metrics)
        self.train_means, self.val_means, self.test_means = (self.means(metrics) for _ in range(3))
        self.val_metrics = self.test_metrics = None
        if torchmetrics:
            from lockstep.models.epoch_metrics import EpochMetrics

            self.val_metrics, self.test_metrics = (EpochMetrics(torchmetrics) for _ in range(2))
        self.model_config = model_config or {}
        self.results: dict[str, float] = {}  # the latest value of each metric, which self.log would round to float32
        self.samples_trained = 0  # in this process, since it started
        # seconds, and seconds of processor, from the start of training to its end, validation and checkpoints included
        self.train_time = self.train_cpu_time = 0.0
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        if channels_last:
            net.to(memory_format=torch.channels_last)
        if compile:
            net.compile(mode=compile_mode)  # in place: torch.compile(net) would put _orig_mod. into the checkpoint's keys

    @abstractmethod
    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return one (n,) tensor per metric from outputs (n, num_outputs) and targets; "loss" is the one trained on."""

    def explain_index_error(self, targets: Tensor) -> None:
        """Raise ConfigError if a batch's targets are the reason why its step has raised an IndexError."""

    def for_torchmetrics(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predictions and targets that torchmetrics are updated with."""
        return outputs, targets

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the net's outputs (n, num_outputs) of inputs (n, *input_shape). If a tail has left none for this process, run
        the net on dummy inputs: other processes wait for its gradients (of zero) and for its BatchNorm layers."""
        samples = self.preprocess(inputs)
        if samples.shape[0]:
            return self.net(samples.contiguous(memory_format=self.memory_format))
        from lockstep.trainer.batchnorm import without_statistics

        with without_statistics():
            return self.net(_dummy_inputs(samples).contiguous(memory_format=self.memory_format))[:0]

    def _check_batch(self, batch: Any) -> None:
        """Raise ConfigError for anything but a Batch, such as a plain datamodule's loader yields."""
        if not isinstance(batch, Batch):
            source = type(getattr(self.trainer, "datamodule", None)).__name__
            needs = f"yields a {type(batch).__name__}; use a lockstep.datamodules.DataModule, which yields a Batch"
            raise config_error("datamodule", source, needs)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self._check_batch(batch)
        try:
            loss, values = self.loss_and_values(batch)
        except IndexError:
            self.explain_index_error(batch.targets)
            raise
        self.count_values(batch, values)
        return loss

    def loss_and_values(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss () that is differentiated, and for each name a tensor (n,), of which nothing is counted yet."""
        values = self._measured(self(batch.inputs), batch.targets)
        return values["loss"].sum() * batch.loss_weight, values

    def count_values(self, batch: Batch, values: dict[str, Tensor]) -> None:
        """Add the values of a batch to the epoch's means."""
        self.train_means.update(values)
        self.samples_trained += batch.ids.shape[0]

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if "loss" in outputs:
            self._log_step(outputs["loss"], batch_idx)

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        """Return outputs (n, num_outputs) of inputs (n, *input_shape), uint8 or float from 0 to 1."""
        self.eval()
        return self(inputs.to(self.device))

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.predict(batch.inputs)

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self._evaluate(batch, self.val_means, self.val_metrics)

    def test_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self._evaluate(batch, self.test_means, self.test_metrics)

    def _evaluate(self, batch: Batch, means: SampleMean, metrics: Any) -> Tensor:
        self._check_batch(batch)
        outputs = self(batch.inputs)
        try:
            means.update(self._measured(outputs, batch.targets))
        except IndexError:
            self.explain_index_error(batch.targets)
            raise
        if metrics is not None and is_first_of_share(self.trainer):
            metrics.update(*self.for_torchmetrics(outputs, batch.targets))
        return outputs

    def _measured(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        values = self.measure(outputs, targets)
        for name in ("loss", *self.train_means.names):
            if name not in values:
                raise config_error("model.metrics", name, f"use what measure returns: {', '.join(values)}")
            if (shape := getattr(values[name], "shape", ())) != targets.shape[:1]:
                accepted = f"{name} has the shape {tuple(shape)}; use {tuple(targets.shape[:1])}, one value per sample"
                raise ConfigError(f"{type(self).__name__}.measure: {accepted}")
        return values

    def _log_step(self, loss: Tensor, batch_idx: int) -> None:
        """Log the loss of one step, over its batches and all ranks; self.log would cost as much as a small model's step."""
        trainer: Any = self.trainer
        step = trainer.global_step + 1 - ends_step(trainer, batch_idx)  # the step that this batch is of, counted from 1
        if not trainer.loggers or step % trainer.log_every_n_steps:
            return
        self._step_loss = loss if begins_step(trainer, batch_idx) else self._step_loss + loss
        if ends_step(trainer, batch_idx):
            mean = trainer.strategy.reduce(self._step_loss, reduce_op="mean")
            log_metrics(trainer, {"train/loss_step": float(mean)})

    def on_train_epoch_end(self) -> None:
        self._end_epoch("train", self.train_means)

    def on_validation_epoch_end(self) -> None:
        self._end_epoch("val", self.val_means, self.val_metrics)

    def on_test_epoch_end(self) -> None:
        self._end_epoch("test", self.test_means, self.test_metrics)

    def _end_epoch(self, stage: str, means: SampleMean, metrics: Any = None) -> None:
        measured = [means] if metrics is None else [means, metrics]
        values = {f"{stage}/{name}": value for metrics in measured for name, value in metrics.compute().items()}
        self.log_dict(values, batch_size=1)
        self.results |= {name: float(value) for name, value in values.items()}
        for metrics in measured:
            metrics.reset()

    def on_train_start(self) -> None:
        self._started = time.perf_counter(), time.process_time()
        # a plateau may monitor what was logged before the checkpoint
        restored = {name: torch.tensor(value, dtype=torch.float64) for name, value in self.results.items()}
        self.trainer.callback_metrics.update(restored)

    def on_train_end(self) -> None:
        self.train_time, self.train_cpu_time = time.perf_counter() - self._started[0], time.process_time() - self._started[1]

    def setup(self, stage: str) -> None:
        datamodule = getattr(self.trainer, "datamodule", None)
        if stage != "fit" or not isinstance(datamodule, DataModule):
            return
        if datamodule.scaler is not None:
            self.preprocess.fit(datamodule.scaler)

    def configure_optimizers(self) -> Any:
        options = self._without_fused()
        if self.param_groups:
            from lockstep.models.param_groups import make_optimizer

            optimizer = make_optimizer(self._checked, self, self.param_groups, **options)
        else:
            optimizer = self._checked(self.parameters(), **options)
        return {"optimizer": optimizer, "lr_scheduler": self.make_schedule(optimizer, self._training_length())}

    def _checked(self, parameters: Iterable[Any], **options: Any) -> Optimizer:
        with naming("model.optimizer"):
            made = self.make_optimizer(parameters, **options)
        if not isinstance(made, Optimizer):
            accepted = "is what model.optimizer._target_ returns; use one of torch's optimizers, or a subclass of theirs"
            raise config_error("model.optimizer", f"a {type(made).__name__}", accepted)
        return made

    def _without_fused(self) -> dict[str, bool]:
        """Return fused=False if the optimizer is configured with a fused kernel, and torch has none for these parameters or
        Lightning takes it for one that unscales gradients by itself: it then refuses to scale, and in mixed precision to clip."""
        is_fused = getattr(self.make_optimizer, "keywords", {}).get("fused", False)
        precision = self.trainer.precision_plugin
        is_scaled = getattr(precision, "scaler", None) is not None
        is_clipped = isinstance(precision, MixedPrecision) and bool(self.trainer.gradient_clip_val)
        is_real = all(parameter.is_floating_point() for parameter in self.parameters())
        return {"fused": False} if is_fused and (is_scaled or is_clipped or not is_real) else {}

    def _training_length(self) -> TrainingLength:
        self.trainer.fit_loop.setup_data()  # without an end in epochs, Lightning has not counted the batches yet
        steps = self.trainer.estimated_stepping_batches
        per_epoch = -(-self.trainer.num_training_batches // self.trainer.accumulate_grad_batches)
        return TrainingLength(steps=steps, epochs=steps / per_epoch, steps_per_epoch=int(per_epoch))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["hyper_parameters"] = self.model_config
        checkpoint["metrics"] = dict(self.results)
        if self.trainer.state.fn == "fit":
            means = self.train_means  # the epoch so far, a row per rank: adding them up here would round
            checkpoint["train_means"] = {"sums": self._rows(means.sums), "count": self._rows(means.count)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.results = dict(checkpoint.get("metrics", {}))
        rows = checkpoint.get("train_means")
        if rows is None or not is_attached(self) or self.trainer.state.fn != "fit":
            return
        rank, number = dp_rank_and_size(self.trainer)
        is_same_world = len(rows["count"]) == number
        for name, state in (("sums", self.train_means.sums), ("count", self.train_means.count)):
            state.copy_(rows[name][rank] if is_same_world else rows[name].sum(dim=0) * int(rank == 0))

    def _rows(self, tensor: Tensor) -> Tensor:
        """Return this tensor of every data-parallel rank, (ranks, ...), on the CPU; a collective."""
        rows = gather_all_tensors(tensor) if self.trainer.world_size > 1 else [tensor]
        return torch.stack(rows[:: len(rows) // dp_rank_and_size(self.trainer)[1]]).cpu()


def wrong_targets(targets: Tensor, accepted: str) -> ConfigError:
    shape = tuple(targets.shape)
    return ConfigError(f"datamodule: its targets have the shape {shape} and the type {targets.dtype}; accepted by {accepted}")


def _initialize_lazy_layers(net: nn.Module, spec: DataSpec) -> None:
    """Draw their weights while these depend on the seed alone; torch would in the first step, and DDP does not take them."""
    if any(is_lazy(tensor) for tensor in (*net.parameters(), *net.buffers())):
        with torch.no_grad():
            net.eval()(_dummy_inputs(torch.empty(0, *spec.input_shape)))
        net.train()


def _dummy_inputs(nothing: Tensor) -> Tensor:
    """Return two samples of the shape of `nothing`: positive and unlike each other, so that zero times a slope is zero."""
    shape = (2, *nothing.shape[1:])
    return torch.linspace(0.1, 1.0, math.prod(shape), dtype=nothing.dtype, device=nothing.device).view(shape)
