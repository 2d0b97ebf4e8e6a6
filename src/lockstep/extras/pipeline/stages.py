"""One stage of a pipeline: some layers of a model's net, computed for one micro-batch after the other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from lockstep.models.supervised import Supervised
from lockstep.nets.dropout import Dropout


def layers_of(stage: int, stages: int, count: int) -> range:
    """Return which of so many layers a stage has."""
    return range(stage * count // stages, (stage + 1) * count // stages)


class Stage(nn.Module):
    """Replace a model's `training_step` and its net's `forward` in each process of `group`, a pipeline, all of which are given
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
        model: Supervised,
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
        self._pieces: list[Any] = []  # (inputs, targets)
        self._batch_idx = 0
        self._logged: dict[str, tuple[dict[str, Any], list[Tensor]]] = {}  # options and values of self.log, by name
        self._options: dict[str, dict[str, Any]] = {}  # the last stage's
        self._own_step = model.training_step
        model.training_step = self.training_step
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

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss that the model's own step would, on every stage; this stage's gradients are computed already."""
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad and not parameter.is_meta]
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        self._batch_idx = batch_idx
        loss = self._run(batch)
        gradients = [parameter.grad for parameter in parameters]
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
        return _Differentiated.apply(loss, gradients, *parameters)

    def _run(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Run forward and backward passes of n > 0 samples, and log what the last stage's steps have logged, on every stage."""
        samples = len(batch[0])
        count = max(number for number in range(1, self.microbatches + 1) if samples % number == 0)
        self._pieces = list(zip(*(part.tensor_split(count) for part in batch), strict=True))
        number, losses = torch.arange(count), []
        self._logged = {}
        self._schedule(count).step(number=number, target=number if self.is_last else None, losses=losses)
        if not self._options:
            told: list[Any] = [{name: options for name, (options, _) in self._logged.items()}]
            dist.broadcast_object_list(told, src=self._ranks[-1], group=self.group, device=self.device)
            self._options = dict(told[0])
        values = torch.zeros(1 + len(self._options), 2, dtype=torch.float64, device=self.device)
        if self.is_last:
            values[0, 0] = torch.stack(losses).detach().sum()
            for row, name in zip(values[1:], self._options, strict=True):
                row += torch.stack(self._logged[name][1]).sum(dim=0) if name in self._logged else 0
        dist.broadcast(values, src=self._ranks[-1], group=self.group)
        for (name, options), (total, weight) in zip(self._options.items(), values[1:], strict=True):
            if weight:  # else not all steps log it
                self.model.log(name, total / weight, **{**options, "batch_size": weight})
        return values[0, 0]

    @contextmanager
    def _logging_to(self, samples: int) -> Iterator[None]:
        """Keep what a step of so many samples logs, with its weight, to be logged as a mean over the batch."""

        def keep(name: str, value: Any, **options: Any) -> None:
            weight = torch.as_tensor(options.pop("batch_size", samples), dtype=torch.float64, device=self.device)
            total = torch.as_tensor(value, device=self.device).detach().double() * weight
            self._logged.setdefault(name, (options, []))[1].append(torch.stack([total, weight]))

        vars(self.model)["log"] = keep
        try:
            yield
        finally:
            del vars(self.model)["log"]

    def _schedule(self, count: int) -> Any:
        """Return torch's schedule of so many micro-batches of a size. Sizes are few: batches are equal, but for the last."""
        first = self._pieces[0][0]
        if (key := (count, first.shape, first.dtype)) not in self._schedules:
            sizes: list[Any] = []
            with self.context(), self._as_net(lambda inputs: sizes.extend(self._sizes(inputs)) or inputs):
                self.model(first)
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
