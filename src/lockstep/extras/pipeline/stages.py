"""One stage of a pipeline: some layers of a Task's net, computed for one micro-batch after the other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from lockstep.datamodules.batches import Batch
from lockstep.models.task import Task
from lockstep.nets.dropout import Dropout


def layers_of(stage: int, stages: int, count: int) -> range:
    """Return which of so many layers a stage has."""
    return range(stage * count // stages, (stage + 1) * count // stages)


class Stage(nn.Module):
    """Replace a task's `loss_and_values` and its net's `forward` in each process of `group`, a pipeline, all of which are given
    the same batches.

    The net's `layers` may be cut, and its `stage(inputs, x, layers)` computes some of them.

    In training torch's schedule runs the micro-batches forward and backward; the last stage's loss and values are then sent to
    all, and the loss's backward pass hands out the gradients that are there. Otherwise the net's outputs are sent to all.
    Micro-batches are equal: a batch that their number does not divide has fewer.

    Args:
        context: entered for each forward pass of training, as Lightning's precision plugins do for a step.
    """

    def __init__(
        self,
        model: Task,
        group: dist.ProcessGroup,
        device: torch.device,
        context: Callable[[], AbstractContextManager[Any]],
        schedule: str,
        microbatches: int,
    ) -> None:
        super().__init__()
        self.model = model
        self.net: Any = model.net
        self.group, self.device, self.context = group, device, context
        self.schedule, self.microbatches = schedule, microbatches
        self.number, self.count = dist.get_rank(group), dist.get_world_size(group)
        self.layers = layers_of(self.number, self.count, len(self.net.layers))
        self.is_first, self.is_last = self.number == 0, self.number == self.count - 1
        self._ranks = dist.get_process_group_ranks(group)
        self._schedules: dict[Any, Any] = {}
        self._rows: dict[Any, list[tuple[torch.Size, torch.dtype]]] = {}  # a sample's form between stages, by the inputs' form
        self._pieces: list[Batch] = []
        self._values: list[Tensor] = []
        self._loss_and_values = model.loss_and_values
        model.loss_and_values = self.loss_and_values
        self.net.forward = self.outputs

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return the net's outputs of n > 0 samples, on every stage, without gradients."""
        (_, _), (shape, dtype) = self._sizes(inputs)
        sent: list[Any] = []
        pieces = [self._relay(piece, sent) for piece in inputs.tensor_split(min(self.microbatches, len(inputs)))]
        outputs = torch.cat(pieces) if self.is_last else torch.empty(len(inputs), *shape, dtype=dtype, device=self.device)
        for work, _ in sent:
            work.wait()
        dist.broadcast(outputs, src=self._ranks[-1], group=self.group)
        return outputs

    def _relay(self, inputs: Tensor, sent: list[Any]) -> Tensor:
        x = None
        if not self.is_first:
            shape, dtype = self._sizes(inputs)[0]
            x = torch.empty(len(inputs), *shape, dtype=dtype, device=self.device)
            dist.recv(x, src=self._ranks[self.number - 1], group=self.group)
        x = self.net.stage(inputs, x, self.layers).contiguous()
        if not self.is_last:
            sent.append((dist.isend(x, dst=self._ranks[self.number + 1], group=self.group), x))
        return x

    def _sizes(self, inputs: Tensor) -> list[tuple[torch.Size, torch.dtype]]:
        """Return shape and type of a sample between stages, and after the last. The first such inputs pass the stages for it."""
        form = inputs.shape[1:], inputs.dtype
        if form not in self._rows:
            devices = [self.device] if self.device.type == "cuda" else []
            with torch.no_grad(), torch.random.fork_rng(devices), self._noise_of(slice(0, 1)):
                self._rows[form] = self._try_one(inputs[:1])
        return self._rows[form]

    def _try_one(self, inputs: Tensor) -> list[tuple[torch.Size, torch.dtype]]:
        received: list[Any] = [None]
        if not self.is_first:
            dist.recv_object_list(received, src=self._ranks[self.number - 1], group=self.group, device=self.device)
        x = None if self.is_first else torch.zeros(received[0][0], dtype=received[0][1], device=self.device)
        x = self.net.stage(inputs, x, self.layers)
        form: list[Any] = [(x.shape, x.dtype)]
        if not self.is_last:
            dist.send_object_list(form, dst=self._ranks[self.number + 1], group=self.group, device=self.device)
        forms: list[Any] = [None] * self.count
        dist.all_gather_object(forms, form[0], group=self.group)
        return [(shape[1:], dtype) for shape, dtype in (forms[0], forms[-1])]

    def loss_and_values(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return them as the task does, on every stage; gradients of this stage's parameters are computed already."""
        names, length = self.model.train_means.names, len(batch.ids)
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad and not parameter.is_meta]
        told = torch.zeros(1 + len(names) * length, dtype=torch.float64, device=self.device)
        gradients: list[Tensor | None] = [None] * len(parameters)
        if length:
            before = [parameter.grad for parameter in parameters]
            for parameter in parameters:
                parameter.grad = None
            self._run(batch, told)
            gradients = [parameter.grad for parameter in parameters]
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient
        values = dict(zip(names, told[1:].view(len(names), length), strict=True))
        return _Differentiated.apply(told[0], gradients, *parameters), values

    def _run(self, batch: Batch, told: Tensor) -> None:
        """Run forward and backward passes of n > 0 samples; write the loss and the measured values, (names, n), into `told`."""
        count = max(number for number in range(1, self.microbatches + 1) if len(batch.ids) % number == 0)
        parts = [part.tensor_split(count) for part in (batch.inputs, batch.targets, batch.ids)]
        self._pieces = [Batch(*piece, batch.loss_weight) for piece in zip(*parts, strict=True)]  # pyright: ignore
        number, losses = torch.arange(count), []
        self._schedule(count).step(number=number, target=number if self.is_last else None, losses=losses)
        if self.is_last:
            told[0] = torch.stack(losses).detach().sum()
            told[1:] = torch.cat(self._values, dim=1).flatten()
        self._values.clear()
        dist.broadcast(told, src=self._ranks[-1], group=self.group)

    def _schedule(self, count: int) -> Any:
        """Return torch's schedule of so many micro-batches of a size. Sizes are few: batches are equal, but for the last."""
        first = self._pieces[0].inputs
        if (key := (count, first.shape, first.dtype)) not in self._schedules:
            sizes: list[Any] = []
            with self.context(), self._as_net(lambda inputs: sizes.extend(self._sizes(inputs)) or inputs):
                self.model(self._pieces[0].inputs)
            shape, dtype = sizes[0]
            x = torch.empty(len(first), *shape, dtype=dtype, device="meta", requires_grad=True)
            loss = torch.empty(1, dtype=torch.float64, device="meta", requires_grad=True)
            forms: dict[str, Any] = {"input_args": () if self.is_first else x, "output_args": loss if self.is_last else x}
            stage = PipelineStage(self, self.number, self.count, self.device, group=self.group, **forms)
            # torch's 1F1B refuses fewer micro-batches than stages, of which all are under way at once by either schedule
            schedule = get_schedule_class("gpipe" if count < self.count else self.schedule)
            stage.num_stages = min(count, self.count)  # torch refuses fewer micro-batches than stages in GPipe, too
            self._schedules[key] = schedule(stage, count, loss_fn=lambda output, _: output.sum(), scale_grads=False)
            stage.num_stages = self.count
        return self._schedules[key]

    def forward(self, *received: Tensor, number: Tensor) -> Tensor:
        """Compute a micro-batch from what the stage before has sent; called by torch's schedule."""
        piece, length = self._pieces[int(number)], len(self._pieces[0].ids)
        begin, x = int(number) * length, received[0] if received else None
        as_net = self._as_net(lambda inputs: self.net.stage(inputs, x, self.layers))
        with self.context(), self._noise_of(slice(begin, begin + length)), as_net:
            if not self.is_last:
                return self.model(piece.inputs).contiguous()
            loss, values = self._loss_and_values(piece)
        self._values.append(torch.stack([values[name].detach().double() for name in self.model.train_means.names]))
        return torch.stack([loss.double()])  # no view: torch detaches it in place

    @contextmanager
    def _as_net(self, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
        self.net.forward = function
        try:
            yield
        finally:
            self.net.forward = self.outputs

    @contextmanager
    def _noise_of(self, samples: slice) -> Iterator[None]:
        """Give dropout that is counted from the samples of a batch the keys of some of them."""
        layers = [layer for layer in self.net.modules() if isinstance(layer, Dropout) and layer.keys is not None]
        keys: Sequence[Any] = [layer.keys for layer in layers]
        for layer, all_keys in zip(layers, keys, strict=True):
            layer.keys = all_keys[samples]
        try:
            yield
        finally:
            for layer, all_keys in zip(layers, keys, strict=True):
                layer.keys = all_keys


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
