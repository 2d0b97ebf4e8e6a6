"""One stage of a pipeline: some layers of a model's net, computed for one micro-batch after the other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleGPipe

from lockstep import noise
from lockstep.models.supervised import Supervised


def layers_of(stage: int, stages: int, count: int) -> range:
    """Return which of so many layers a stage has."""
    return range(stage * count // stages, (stage + 1) * count // stages)


class Stage(nn.Module):
    """Replace a model's `training_step` and its net's `forward` in each process, all of which are given the same batches.

    The net's `layers` may be cut, and its `stage(inputs, x, layers)` computes some of them.

    In training torch's schedule runs the micro-batches forward and backward; the last stage's loss and values are then sent to
    all, and the loss's backward pass hands out the gradients that are there. Otherwise the net's outputs are sent to all.
    Micro-batches are equal: a batch that their number does not divide has fewer.

    Args:
        context: entered for each forward pass of training, as Lightning's precision plugins do for a step.
        tied: the parameters that the first and the last stage share, in these; `ends` is the group of the two.
    """

    def __init__(
        self,
        model: Supervised,
        device: torch.device,
        context: Callable[[], AbstractContextManager[Any]],
        microbatches: int,
        tied: Sequence[nn.Parameter],
        ends: dist.ProcessGroup | None,
    ) -> None:
        super().__init__()
        self.model = model
        self.net: Any = model.net
        self.device, self.context = device, context
        self.microbatches, self.tied, self.ends = microbatches, tied, ends
        self.number, self.count = dist.get_rank(), dist.get_world_size()
        self.layers = layers_of(self.number, self.count, len(self.net.layers))
        self.is_first, self.is_last = self.number == 0, self.number == self.count - 1
        self._schedules: dict[Any, Any] = {}
        self._received: Tensor | None = None  # the batch that was relayed last, from the stage before
        self._pieces: list[Any] = []  # (inputs, targets)
        self._batch_idx = 0
        self._logged: dict[str, tuple[dict[str, Any], float, float]] = {}  # options, sum and weight of self.log, by name
        self._own_step = model.training_step
        model.training_step = self.training_step
        self.net.forward = self.outputs

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return the net's outputs of n > 0 samples, on every stage, without gradients."""
        x = self._relay(inputs)
        form: list[Any] = [(x.shape, x.dtype)]
        dist.broadcast_object_list(form, src=self.count - 1, device=self.device)
        outputs = x if self.is_last else torch.empty(form[0][0], dtype=form[0][1], device=self.device)
        dist.broadcast(outputs, src=self.count - 1)
        return outputs

    def _relay(self, inputs: Tensor) -> Tensor:
        """Compute this stage's layers for a whole batch when the stage before has, and send the result on."""
        self._received = None
        if not self.is_first:
            form: list[Any] = [None]
            dist.recv_object_list(form, src=self.number - 1, device=self.device)
            self._received = torch.empty(form[0][0], dtype=form[0][1], device=self.device)
            dist.recv(self._received, src=self.number - 1)
        x = self.net.stage(inputs, self._received, self.layers).contiguous()
        if not self.is_last:
            dist.send_object_list([(x.shape, x.dtype)], dst=self.number + 1, device=self.device)
            dist.send(x, dst=self.number + 1)
        return x

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss that the model's own step would, on every stage; this stage's gradients are computed already."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad and not parameter.is_meta]
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        self._batch_idx = batch_idx
        loss = self._run(batch)
        for parameter in self.tied:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=self.ends)
        gradients = [parameter.grad for parameter in parameters]
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
        return _Differentiated.apply(loss, gradients, *parameters)

    def _run(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Run forward and backward passes of n > 0 samples, and log what the last stage's steps have logged, on every stage."""
        count = max(number for number in range(1, self.microbatches + 1) if len(batch[0]) % number == 0)
        self._pieces = list(zip(*(part.tensor_split(count) for part in batch), strict=True))
        number, losses = torch.arange(count), []
        self._logged = {}
        self._schedule(count).step(number=number, target=number if self.is_last else None, losses=losses)
        sent: list[Any] = [sum(loss.item() for loss in losses), self._logged]
        dist.broadcast_object_list(sent, src=self.count - 1, device=self.device)
        loss, logged = sent
        for name, (options, total, weight) in logged.items():
            if weight:
                self.model.log(name, self._double(total / weight), **{**options, "batch_size": self._double(weight)})
        return self._double(loss)

    def _double(self, value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float64, device=self.device)

    @contextmanager
    def _logging_to(self, samples: int) -> Iterator[None]:
        """Keep what a step of so many samples logs, with its weight, to be logged as a mean over the batch."""

        def keep(name: str, value: Any, **options: Any) -> None:
            weight = float(options.pop("batch_size", samples))
            _, total, before = self._logged.get(name, (options, 0.0, 0.0))
            self._logged[name] = options, total + float(value) * weight, before + weight

        vars(self.model)["log"] = keep
        try:
            yield
        finally:
            del vars(self.model)["log"]

    def _schedule(self, count: int) -> Any:
        """Return torch's schedule of so many micro-batches of a size. Sizes are few: batches are equal, but for the last."""
        first = self._pieces[0][0]
        if (key := (count, first.shape, first.dtype)) not in self._schedules:
            devices = [self.device] if self.device.type == "cuda" else []
            samples = self._noise_of(slice(0, len(first)))
            with torch.no_grad(), torch.random.fork_rng(devices), self.context(), samples, self._as_net(self._relay):
                output = self.model(first).to("meta").requires_grad_()
            loss = torch.empty(1, dtype=torch.float64, device="meta", requires_grad=True)
            received = () if self._received is None else self._received.to("meta").requires_grad_()
            forms: dict[str, Any] = {"input_args": received, "output_args": loss if self.is_last else output}
            stage = PipelineStage(self, self.number, self.count, self.device, **forms)
            # torch's 1F1B refuses fewer micro-batches than stages, of which all are under way at once
            schedule = ScheduleGPipe if count < self.count else Schedule1F1B
            stage.num_stages = min(count, self.count)  # torch refuses fewer micro-batches than stages in GPipe, too
            self._schedules[key] = schedule(stage, count, loss_fn=lambda output, _: output.sum(), scale_grads=False)
            stage.num_stages = self.count
        return self._schedules[key]

    def forward(self, *received: Tensor, number: Tensor) -> Tensor:
        """Compute a micro-batch from what the stage before has sent; called by torch's schedule."""
        piece, length = self._pieces[int(number)], len(self._pieces[0][0])
        begin, x = int(number) * length, received[0] if received else None
        as_net = self._as_net(lambda inputs: self.net.stage(inputs, x, self.layers))
        with self.context(), self._noise_of(slice(begin, begin + length)), as_net:
            if not self.is_last:
                return self.model(piece[0]).contiguous()
            with self._logging_to(length):
                loss = self._own_step(piece, self._batch_idx)
        return torch.stack([loss.double() / len(self._pieces)])  # no view: torch detaches it in place

    @contextmanager
    def _as_net(self, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
        self.net.forward = function
        try:
            yield
        finally:
            self.net.forward = self.outputs

    @contextmanager
    def _noise_of(self, samples: slice) -> Iterator[None]:
        """Draw the noise of some samples of the batch until the block exits."""
        whole = noise.step()
        noise.begin(None if whole is None else whole.part(samples))
        try:
            yield
        finally:
            noise.begin(whole)


class _Differentiated(torch.autograd.Function):
    """A loss whose gradients are known: its backward pass hands them out, times its own."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor | None], *_: Tensor) -> Tensor:  # pyright: ignore
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        return None, None, *(None if known is None else known.mul_(gradient) for known in ctx.gradients)
