"""Less to send than DDP's all-reduce of whole gradients: what conf/trainer/communication offers, for several processes.

None of it gives the result of one process. Each is a communication hook of DDP, called with one bucket of gradients at a time;
what it carries from step to step is kept for each rank in the checkpoint.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lockstep.config.targets import buildable
from lockstep.counter_rng import derive_seed
from lockstep.extras.compression.stateful import StatefulCommunication
from lockstep.extras.compression.strategy import Communication


@buildable
class HalfPrecision(Communication):
    """Gradients are rounded, sent and added up in 16 bits, by torch's own hooks."""

    def __init__(self, dtype: Literal["float16", "bfloat16"]) -> None:
        self.dtype = dtype
        self.cause = f"gradients are added up in {dtype}"

    def register(self, model: DistributedDataParallel) -> None:
        model.register_comm_hook(None, {"float16": fp16_compress_hook, "bfloat16": bf16_compress_hook}[self.dtype])


@buildable
class PowerSGD(StatefulCommunication):
    """A matrix of gradients is sent as the two thin factors of an approximation, and what that misses is added to the next
    step's gradient (Vogels et al. 2019, arXiv:1905.13727, algorithms 1 and 2).

    torch's powerSGD_hook keeps its state by DDP's buckets, which in the first step after a resumption hold other parameters
    than before; here it is kept by parameter, so that a resumed run goes on to the bit.

    Where factors of `rank` columns have as many numbers as the matrix, that is sent itself; before step `start` all are.
    """

    def __init__(self, rank: int = 2, start: int = 100, seed: int = 0) -> None:
        self.rank, self.start, self.seed = rank, start, seed
        self.kind = f"PowerSGD of rank {rank}"
        self.cause = f"PowerSGD sends an approximation of rank {rank} of each matrix of gradients from step {start} on"
        self.steps = 0
        self.errors: dict[str, Tensor] = {}  # by parameter: what was not sent yet, (rows, columns)
        self.rights: dict[str, Tensor] = {}  # by parameter: the right factor of the latest step, (columns, rank)
        self._names: dict[Tensor, str] = {}

    def register(self, model: DistributedDataParallel) -> None:
        self._names = {parameter: name for name, parameter in model.module.named_parameters()}
        device = next(iter(self._names)).device
        for kept in (self.errors, self.rights):
            kept |= {name: tensor.to(device) for name, tensor in kept.items()}
        model.register_comm_hook(None, self._reduce)

    def _reduce(self, _: object, bucket: GradBucket) -> Future[Tensor]:
        """Waits for each of its all-reduces: over gloo two buckets at once could wait for each other's threads."""
        if self.steps < self.start:
            average([bucket.buffer()])
        else:
            self._send([(self._names[p], gradient) for p, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)])
        self.steps += bucket.is_last()
        return _done(bucket.buffer())

    def _send(self, gradients: Sequence[tuple[str, Tensor]]) -> None:
        matrices = {name: g.view(len(g), -1) for name, g in gradients if self._is_worth_it(g)}
        for name, matrix in matrices.items():
            if name in self.errors:
                matrix += self.errors[name]
        lefts = {name: matrix @ self._right(name, matrix) for name, matrix in matrices.items()}
        average([*lefts.values(), *(gradient for name, gradient in gradients if name not in matrices)])
        lefts = {name: _orthonormal(left) for name, left in lefts.items()}
        rights = {name: matrix.T @ lefts[name] for name, matrix in matrices.items()}
        average(rights.values())
        for name, matrix in matrices.items():
            sent = lefts[name] @ rights[name].T
            is_sound = sent.isfinite().all()  # else the step is left out, or the run ends; on every rank
            for kept, new in ((self.errors, matrix - sent), (self.rights, rights[name])):
                kept[name] = torch.where(is_sound, new, kept.get(name, torch.zeros_like(new)))
            matrix.copy_(sent)

    def _is_worth_it(self, gradient: Tensor) -> bool:
        return gradient.ndim > 1 and self.rank * (len(gradient) + gradient[0].numel()) < gradient.numel()

    def _right(self, name: str, matrix: Tensor) -> Tensor:
        """Returns the factor of the step before; at first a guess, the same on every rank."""
        if name not in self.rights:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, [*self._names.values()].index(name)))
            guess = torch.randn(matrix.shape[1], self.rank, generator=generator, dtype=torch.float64)
            self.rights[name] = guess.to(matrix)
        return self.rights[name]

    def save(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        return {"steps": self.steps, "errors": self.errors, "rights": self.rights}

    def load(self, checkpoint: dict[str, Any], ranks: Sequence[Any], rank: int, world_size: int) -> None:
        own = ranks[rank % len(ranks)]
        self.steps, self.rights, self.errors = own["steps"], dict(own["rights"]), dict(own["errors"])
        if len(ranks) != world_size:  # what is missing from their mean is still owed by that of these
            self.errors = {name: torch.stack([one["errors"][name] for one in ranks]).mean(dim=0) for name in self.errors}


@buildable
class LocalSGD(StatefulCommunication):
    """Post-local SGD (Lin et al. 2020, arXiv:1808.07217): from step `start` on each process makes steps of its own, and all
    take the mean of their weights after every `period` of them, before a validation, and when training ends. Optimizers keep
    their own state.

    A checkpoint has the mean of the weights, and for resumption each rank's.
    """

    kind = "LocalSGD"

    def __init__(self, start: int = 100, period: int = 8) -> None:
        self.start, self.period = start, period
        self.cause = f"each process makes steps of its own from step {start} on; weights are averaged every {period} of them"
        self.steps = 0
        self._parameters: list[nn.Parameter] = []
        self._weights: dict[str, Tensor] | None = None  # of this rank, from a checkpoint

    def register(self, model: DistributedDataParallel) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if self._weights is not None:  # DDP has just given everyone those of rank zero
            model.module.load_state_dict(self._weights)
            self._weights = None
        model.register_comm_hook(None, self._reduce)

    def _reduce(self, _: object, bucket: GradBucket) -> Future[Tensor]:
        if self.steps < self.start:
            average([bucket.buffer()])
        return _done(bucket.buffer())

    def attach(self, optimizer: Optimizer) -> None:
        optimizer.register_step_post_hook(self._after_step)

    def _after_step(self, *_: object) -> None:
        self.steps += 1
        if (self.steps - self.start) % self.period == 0:
            self.synchronize()

    def synchronize(self) -> None:
        """Every process takes the mean of the weights."""
        if self.steps > self.start:
            average(self._parameters)

    def save(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        own = {"state_dict": checkpoint["state_dict"], "optimizer_states": checkpoint.get("optimizer_states")}
        if self.steps > self.start:
            checkpoint["state_dict"] = {name: tensor.clone() for name, tensor in own["state_dict"].items()}
            average(tensor for tensor in checkpoint["state_dict"].values() if tensor.is_floating_point())
        return own | {"steps": self.steps}

    def load(self, checkpoint: dict[str, Any], ranks: Sequence[Any], rank: int, world_size: int) -> None:
        self.steps = ranks[0]["steps"]
        if len(ranks) == world_size:  # else all go on from their mean
            self._weights = ranks[rank]["state_dict"]
            checkpoint["optimizer_states"] = ranks[rank]["optimizer_states"]


@torch.no_grad()
def average(tensors: Iterable[Tensor]) -> None:
    """Sets each to its mean over the processes; one all-reduce."""
    if not (tensors := list(tensors)):
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat.div_(dist.get_world_size()))
    for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))


def _orthonormal(columns: Tensor) -> Tensor:
    return torch.linalg.qr(columns.to(torch.promote_types(columns.dtype, torch.float32))).Q.to(columns)


def _done(buffer: Tensor) -> Future[Tensor]:
    future: Future[Tensor] = Future()
    future.set_result(buffer)
    return future
