"""Base of the shipped models: a net, the preparation of its inputs, an optimizer and a schedule."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from lightning import LightningModule
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import Metric

from lockstep.config.construct import naming
from lockstep.datamodules.base import DataSpec
from lockstep.errors import config_error
from lockstep.models.preprocess import Preprocess
from lockstep.models.schedules import TrainingLength
from lockstep.trainer.lightning_internals import add_to_logged, is_attached

OptimizerFactory = Callable[..., Optimizer]
ScheduleFactory = Callable[[Optimizer, TrainingLength], dict[str, Any]]
CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]  # modes of torch.compile


class Supervised(LightningModule):
    """A net that is trained on pairs of inputs and targets. A subclass has the `step`, which logs what it measures.

    Args:
        net: inputs (n, *input_shape) to outputs (n, num_outputs).
        optimizer: called with the parameters, and with fused=False where it is configured to be fused and can't be.
        lr_scheduler: called with the optimizer and the TrainingLength; returns Lightning's scheduler dictionary.
        metrics: names of what a step logs besides the loss, as train/NAME, val/NAME and test/NAME.
        torchmetrics: further metrics by name, for what is no mean over samples; logged as val/NAME and test/NAME.
        param_groups: options of the optimizer for some parameters, see lockstep.models.param_groups.
        model_config: plain containers from which `lockstep.models.from_checkpoint.load_model` builds this model again.
    """

    known_metrics: tuple[str, ...] = ("loss",)

    def __init__(
        self,
        net: nn.Module,
        spec: DataSpec,
        optimizer: OptimizerFactory,
        lr_scheduler: ScheduleFactory,
        metrics: Iterable[str] = ("loss",),
        torchmetrics: Mapping[str, Metric] | None = None,
        param_groups: Mapping[str, Mapping[str, Any]] | None = None,
        compile: bool = False,
        compile_mode: CompileMode = "default",
        channels_last: bool = False,
        model_config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.metric_names = tuple(metrics)
        for name in self.metric_names:
            if name not in self.known_metrics:
                raise config_error("model.metrics", name, f"{type(self).__name__} measures {', '.join(self.known_metrics)}")
        if twice := sorted({*self.metric_names} & {*(torchmetrics or {})}):
            raise config_error("model.torchmetrics", twice, "use a name that model.metrics has not")
        self.net, self.spec = net, spec
        self.preprocess = Preprocess(spec.input_shape)
        self.make_optimizer, self.make_schedule, self.param_groups = optimizer, lr_scheduler, param_groups or {}
        self.val_metrics, self.test_metrics = (_copies(torchmetrics or {}) for _ in range(2))
        self.model_config = model_config or {}
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        if channels_last:
            net.to(memory_format=torch.channels_last)
        if compile:
            net.compile(mode=compile_mode)  # in place: torch.compile(net) would put _orig_mod. into the checkpoint's keys

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs (n, *input_shape), uint8 or float from 0 to 1, to the net's outputs (n, num_outputs)."""
        return self.net(self.preprocess(inputs).contiguous(memory_format=self.memory_format))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.step("train", batch)[0]

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self._evaluate("val", batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self._evaluate("test", batch)

    def _evaluate(self, stage: str, batch: tuple[Tensor, Tensor]) -> Tensor:
        _, outputs = self.step(stage, batch)
        metrics: Any = self.val_metrics if stage == "val" else self.test_metrics
        given = self.for_torchmetrics(outputs, batch[1]) if metrics else ()
        for name, metric in metrics.items():
            metric.update(*given)
            self.log(f"{stage}/{name}", metric, on_step=False, on_epoch=True)
        return outputs

    @abstractmethod
    def step(self, stage: str, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the loss () and the net's outputs of a batch, and log by `log_means` as STAGE/NAME."""

    def for_torchmetrics(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the predictions and targets that torchmetrics are updated with."""
        return outputs, targets

    def log_means(self, stage: str, values: Mapping[str, Tensor], samples: Any) -> None:
        """Log a batch's means, each given as one () or as numbers (samples,); over an epoch they are means over its samples."""
        kind = torch.float32 if self.device.type == "mps" else torch.float64  # in which Lightning adds up
        # a stage of a pipeline replaces `log`
        if stage != "train" or "log" in vars(self) or not add_to_logged(self, values, samples, kind):
            for name, value in values.items():
                self.log(f"{stage}/{name}", value.to(kind).mean(), on_step=False, on_epoch=True, batch_size=samples)
        trainer: Any = self.trainer if stage == "train" and is_attached(self) else None
        every = trainer and trainer.log_every_n_steps  # 0 in a barebones trainer
        if every and (trainer.global_step + 1) % every == 0:
            self.log("train/loss_step", values["loss"], on_step=True, on_epoch=False, batch_size=samples)

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        """Return outputs (n, num_outputs) of inputs (n, *input_shape), uint8 or float from 0 to 1."""
        self.eval()
        return self(inputs.to(self.device))

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.predict(batch[0])

    def setup(self, stage: str) -> None:
        scaler = getattr(getattr(self.trainer, "datamodule", None), "scaler", None)
        if stage == "fit" and scaler is not None:
            self.preprocess.fit(scaler)

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


def _copies(metrics: Mapping[str, Metric]) -> nn.ModuleDict:
    for name, metric in metrics.items():
        if not isinstance(metric, Metric):
            raise config_error(f"model.torchmetrics.{name}", type(metric).__name__, "use a torchmetrics.Metric")
    return nn.ModuleDict({name: metric.clone() for name, metric in metrics.items()})
