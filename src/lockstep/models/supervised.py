"""Base of the shipped models: a net, the standardisation of its inputs, an optimizer and a schedule."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from lightning import LightningModule
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import Metric, MetricCollection

from lockstep.config.construct import naming
from lockstep.datamodules.base import DataSpec
from lockstep.errors import config_error
from lockstep.models.schedules import TrainingLength
from lockstep.runs.shares import EqualBuffers
from lockstep.trainer.lightning_internals import add_to_logged, is_attached

if TYPE_CHECKING:  # the import takes a second
    from sklearn.preprocessing import StandardScaler


class Preprocess(EqualBuffers, nn.Module):
    """Scale uint8 to 0..1, then standardise: (x - mean) / scale, per channel for images, per feature for other inputs.

    Mean and scale are 0 and 1 unless `fit` or a checkpoint sets them.
    """

    equal_buffers = ("mean", "scale")
    mean: Tensor
    scale: Tensor

    def __init__(self, input_shape: Sequence[int]) -> None:
        super().__init__()
        shape = (input_shape[0], 1, 1) if len(input_shape) == 3 else tuple(input_shape)
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))
        self._is_identity = True
        self.register_load_state_dict_post_hook(Preprocess._look)

    def fit(self, scaler: "StandardScaler") -> None:
        """Copy the parameters of a fitted scaler, rounded to float32, so that they are the same at any precision."""
        for buffer, values in ((self.mean, scaler.mean_), (self.scale, scaler.scale_)):
            buffer.copy_(torch.as_tensor(values, dtype=torch.float32).reshape(buffer.shape))
        self._look()

    def _look(self, *_: Any) -> None:  # not in each step: a GPU would be waited for
        self._is_identity = bool((self.mean == 0).all() & (self.scale == 1).all())

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, *input_shape), uint8 or float, to the same shape in the buffers' type."""
        values = x.to(self.mean.dtype, copy=True)
        if x.dtype == torch.uint8:
            values.div_(255)
        return values if self._is_identity else values.sub_(self.mean).div_(self.scale)


class Supervised(LightningModule):
    """A net that is trained on pairs of inputs and targets. A subclass has the `step`, which logs what it measures.

    Args:
        net: maps inputs (n, *input_shape) to outputs (n, num_outputs).
        optimizer: called with the parameters, and with fused=False where Lightning would refuse a fused one.
        lr_scheduler: called with the optimizer and the TrainingLength; returns Lightning's scheduler dictionary.
        metrics: names of the values of a step that are logged, as train/NAME, val/NAME and test/NAME.
        torchmetrics: further metrics by name, for what is no mean over samples; logged as val/NAME and test/NAME.
        model_config: plain containers for checkpoints: the model's group, and the shapes of its data.
    """

    known_metrics: tuple[str, ...] = ("loss",)

    def __init__(
        self,
        net: nn.Module,
        spec: DataSpec,
        optimizer: Callable[..., Optimizer],
        lr_scheduler: Callable[[Optimizer, TrainingLength], dict[str, Any]],
        metrics: Iterable[str] = ("loss",),
        torchmetrics: Mapping[str, Metric] | None = None,
        compile: bool = False,
        channels_last: bool = False,
        model_config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.metric_names = tuple(metrics)
        for name in self.metric_names:
            if name not in self.known_metrics:
                raise config_error("model.metrics", name, f"{type(self).__name__} measures {', '.join(self.known_metrics)}")
        self.net, self.spec, self.preprocess = net, spec, Preprocess(spec.input_shape)
        self.make_optimizer, self.make_schedule = optimizer, lr_scheduler
        self.val_metrics = MetricCollection(dict(torchmetrics or {}), prefix="val/", compute_groups=False)
        self.test_metrics = self.val_metrics.clone(prefix="test/")
        self.model_config = model_config or {}
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        if channels_last:
            net.to(memory_format=torch.channels_last)
        if compile:
            net.compile()  # in place: torch.compile(net) would put _orig_mod. into the checkpoint's keys

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs (n, *input_shape), uint8 or float from 0 to 1, to the net's outputs (n, num_outputs)."""
        return self.net(self.preprocess(inputs).contiguous(memory_format=self.memory_format))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.step("train", batch)[0]

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self._evaluate("val", batch, self.val_metrics)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self._evaluate("test", batch, self.test_metrics)

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.predict(batch[0])

    def _evaluate(self, stage: str, batch: tuple[Tensor, Tensor], metrics: MetricCollection) -> Tensor:
        outputs = self.step(stage, batch)[1]
        if len(metrics):
            metrics.update(self.predictions(outputs), batch[1])
            self.log_dict(metrics, on_step=False, on_epoch=True)
        return outputs

    @abstractmethod
    def step(self, stage: str, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the loss () and the net's outputs for a batch, and call `log_means` with what is measured."""

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return what the net's outputs predict, for `predict` and for torchmetrics."""
        return outputs

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        """Return the predictions for inputs (n, *input_shape), uint8 or float from 0 to 1."""
        self.eval()
        return self.predictions(self(inputs.to(self.device)))

    def log_means(self, stage: str, values: Mapping[str, Tensor], samples: Any) -> None:
        """Log those of a batch's means that `metrics` names. Over an epoch they are means over samples.

        A value is () or has one number per sample, (samples,). `train/loss_step` is logged at the trainer's logging interval.
        """
        named = {f"{stage}/{name}": values[name] for name in self.metric_names}
        kind = torch.float32 if self.device.type == "mps" else torch.float64  # in which Lightning adds up
        if "log" in vars(self) or not add_to_logged(self, named, samples, kind):  # a stage of a pipeline replaces `log`
            for name, value in named.items():
                self.log(name, value.to(kind).mean(), on_step=False, on_epoch=True, batch_size=samples)
        trainer: Any = self.trainer if stage == "train" and is_attached(self) else None
        every = trainer and trainer.log_every_n_steps  # 0 in a barebones trainer
        if every and (trainer.global_step + 1) % every == 0:
            self.log("train/loss_step", values["loss"], on_step=True, on_epoch=False, batch_size=samples)

    def setup(self, stage: str) -> None:
        """Take over the mean and the scale of standardised data."""
        scaler = getattr(getattr(self.trainer, "datamodule", None), "scaler", None)
        if stage == "fit" and scaler is not None:
            self.preprocess.fit(scaler)

    def parameter_groups(self) -> Any:
        """Return what the optimizer trains. Override it for groups of parameters with options of their own."""
        return self.parameters()

    def configure_optimizers(self) -> Any:
        """Return the optimizer, and its schedule for the length of training."""
        is_fused = getattr(self.make_optimizer, "keywords", {}).get("fused", False)
        options = {} if not is_fused or self._can_fuse() else {"fused": False}
        with naming("model.optimizer"):
            optimizer = self.make_optimizer(self.parameter_groups(), **options)
        self.trainer.fit_loop.setup_data()  # without an end in epochs, Lightning has not counted the batches yet
        steps = self.trainer.estimated_stepping_batches
        per_epoch = -(-self.trainer.num_training_batches // self.trainer.accumulate_grad_batches)
        training = TrainingLength(steps=steps, epochs=steps / per_epoch, steps_per_epoch=int(per_epoch))
        return {"optimizer": optimizer, "lr_scheduler": self.make_schedule(optimizer, training)}

    def _can_fuse(self) -> bool:
        """False where Lightning refuses a fused optimizer: with a gradient scaler, and with clipping in mixed precision."""
        precision = self.trainer.precision_plugin
        is_mixed = isinstance(precision, MixedPrecision)
        return not is_mixed or (precision.scaler is None and not self.trainer.gradient_clip_val)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["hyper_parameters"] = self.model_config
