"""The gradients and the state that virtual workers leave of a step: summed, then averaged."""

import torch
from lightning import LightningModule
from torch import Tensor

from lockstep.exact.tree import Tensors


class Step:
    """One step of all workers. Each begins from the state before the step: buffers, and parameters that are not trained. Real
    values of it are averaged over the workers that had a sample; all others are the first worker's. Gradients are averaged over
    all workers, as DDP averages them over all processes.

    Attributes:
        loss: the mean over all workers, from `take` on; float64 ().
        had_loss, has_logged: True if any worker had a loss, or has logged a value to be combined.
    """

    def __init__(self, model: LightningModule, workers: int) -> None:
        self._model, self._workers, self._buffers = model, workers, dict(model.named_buffers())
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        state = [*model.buffers(), *(parameter for parameter in model.parameters() if not parameter.requires_grad)]
        self._real = [tensor for tensor in state if tensor.is_floating_point() or tensor.is_complex()]
        self._others = [tensor for tensor in state if not (tensor.is_floating_point() or tensor.is_complex())]
        self._before = [(tensor, tensor.detach().clone()) for tensor in state]
        self._gradients: list[Tensor | None] = []
        self.loss = torch.zeros((), dtype=torch.float64, device=model.device)

    @torch.no_grad()
    def begin(self) -> None:
        """Restore the model's state from before the step; called before each worker."""
        for tensor, before in self._before:
            tensor.copy_(before)
        for parameter in self._trained:
            parameter.grad = None

    @torch.no_grad()
    def leaf(self, loss: Tensor | None, is_first: bool, has_logged: bool) -> Tensors:
        """Return the gradients and copies of the state that a worker has left in the model. A gradient that it has not left is
        zero, and so is the state of a worker without a loss: it had no sample, or left it out."""
        self._take_replaced_buffers()
        gradients = [_zeros(p) if p.grad is None else p.grad.contiguous() for p in self._trained]
        real = [_zeros(tensor) if loss is None else tensor.detach().clone() for tensor in self._real]
        others = [tensor.detach().clone() if is_first else _zeros(tensor) for tensor in self._others]
        mean = (self.loss if loss is None else loss.detach().reshape(())).double().clone()
        facts = [loss is not None, has_logged, *(p.grad is not None for p in self._trained)]
        return [*gradients, *real, *others, mean, torch.tensor(facts, dtype=mean.dtype, device=mean.device)]

    def _take_replaced_buffers(self) -> None:
        """Copy the values of a tensor that a step has assigned to a buffer, as by `self.mean = 0.9 * self.mean + ...`, to the
        tensor that was there, with which the next worker begins again."""
        for name, buffer in self._buffers.items():
            owner, _, attribute = name.rpartition(".")
            module = self._model.get_submodule(owner)
            replaced = getattr(module, attribute)
            if replaced is not buffer and isinstance(replaced, Tensor) and replaced.shape == buffer.shape:
                buffer.copy_(replaced)
                setattr(module, attribute, buffer)

    @torch.no_grad()
    def take(self, total: Tensors) -> None:
        """Take the sum over all workers."""
        *parts, loss, counts = total
        gradients, state = parts[: len(self._trained)], parts[len(self._trained) :]
        had_loss, has_logged, *had_gradient = counts.tolist()
        self.had_loss, self.has_logged = had_loss > 0, has_logged > 0
        self._gradients = [g.div_(self._workers) if n else None for g, n in zip(gradients, had_gradient, strict=True)]
        if not self.had_loss:
            self.begin()
            return
        for tensor, summed in zip([*self._real, *self._others], state, strict=True):
            tensor.copy_(summed / had_loss if tensor.is_floating_point() or tensor.is_complex() else summed)
        self.loss = loss / self._workers

    def write_gradients(self) -> None:
        for parameter, gradient in zip(self._trained, self._gradients, strict=True):
            parameter.grad = gradient


def _zeros(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor, memory_format=torch.contiguous_format, requires_grad=False)
