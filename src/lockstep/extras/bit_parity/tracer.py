"""What every module made of every micro-batch, as hashes of its bits: of inputs, outputs and gradients, in the order in which
they were computed. places.py compares two of these.

A trace is a list of spans: one for each micro-batch that a virtual worker computes, and one for what a process does before and
after those of a step. Strategies that divide a batch among virtual workers announce them by `on_worker_start`.
"""

import hashlib
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from numbers import Number
from typing import Any

import numpy
import torch
from lightning import LightningModule, Trainer
from torch import Tensor, nn

from lockstep.extras.any_batch.any_batch import leaves
from lockstep.extras.exact.generators import GENERATORS, state_of
from lockstep.extras.parity.differences import all_ranks
from lockstep.extras.parity.recorder import Recorder, state
from lockstep.extras.plain_lightning.processes import generator_states

Span = dict[str, Any]  # plain containers: step, stage, batch, worker, state (name to hash) and events [kind, name, hash]
_FRAMEWORKS = (vars(LightningModule()).keys() | vars(torch.optim.SGD([torch.zeros(1)])).keys()) - {"training"}
_DEEPEST = 8  # of objects within objects, which may be a circle
_LIBRARIES = ("torch", "lightning", "torchmetrics", "lockstep")


class Tracer(Recorder):
    """Traces a whole training, by hooks on all modules, their outputs and their parameters. `facts["trace"]` holds the spans of
    each process, `facts["modules"]` the classes of the modules."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._model, self._trainer = pl_module, trainer
        self._spans: list[Span] = []
        for name, module in pl_module.named_modules():
            module.register_forward_pre_hook(self._forward_hook("enter", "gradient of the input", name), with_kwargs=True)
            module.register_forward_hook(self._forward_hook("leave", "gradient of the output", name))
        for name, parameter in pl_module.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(lambda p, name=name: self._add("gradient", name, p.grad))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for optimizer in trainer.optimizers:
            optimizer.register_step_post_hook(lambda optimizer, *_: self._after_step(optimizer))

    def begins(self, trainer: Trainer, model: LightningModule, what: str) -> None:
        self._begin("before", trainer.global_rank, _hashes(_state(model)))
        self._add_all("state", state(model).items())

    def on_worker_start(self, worker: int, share: Any) -> None:
        self._begin("micro-batch", worker, _hashes(_state(self._model)) | _hashes(_generators(self._model.device)))
        self._add("batch", "", share)

    def on_worker_output(self, output: Any) -> None:
        """Nothing depends on what is returned beside the loss."""
        self._add("returned", "", output["loss"] if isinstance(output, dict) and "loss" in output else output)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_after_backward(trainer, pl_module)
        optimizers = {f"optimizer.{name}": value for one in trainer.optimizers for name, value in _attributes(one)}
        self._begin("after", trainer.global_rank, _hashes(optimizers) | _hashes(_state(pl_module)))
        self._add_all("summed", _gradients(pl_module))

    def _after_step(self, optimizer: Any) -> None:
        """Gradients are still there; before the step they are not yet, since Lightning computes them in its closure."""
        self._add("rates", "", [float(group["lr"]) for group in optimizer.param_groups])
        self._add_all("given", _gradients(self._model))
        self._add_all("weights", self._model.named_parameters())

    def close(self, trainer: Trainer) -> None:
        self.facts["trace"] = all_ranks(self._spans)
        self.facts["modules"] = {name: type(module).__name__ for name, module in self._model.named_modules()}

    def _begin(self, stage: str, number: int, state: dict[str, str]) -> None:
        phase = str(self._trainer.state.stage and self._trainer.state.stage.value)
        key = {"step": self.number, "phase": phase, "batch": len(self._samples), "stage": stage, "number": number}
        self._spans.append(key | {"state": state, "events": []})

    def _add(self, kind: str, name: str, value: Any) -> None:
        if self._spans:
            self._spans[-1]["events"].append([kind, name, _hash(value)])

    def _add_all(self, kind: str, values: Any) -> None:
        for name, value in values:
            self._add(kind, name, value)

    def _forward_hook(self, kind: str, backward: str, name: str) -> Any:
        """Returns a hook for the inputs of a module, or for its output: the last of the arguments. A tensor's hook sees the
        gradient of its value at this time; it stands on no parameter, where it would stay."""

        def hook(_: nn.Module, *values: Any) -> None:
            value = values if kind == "enter" else values[-1]
            self._add(kind, name, value)
            for _name, tensor in leaves(value, ""):
                if tensor.requires_grad and not tensor.is_leaf:
                    tensor.register_hook(lambda gradient: self._add(backward, name, gradient))

        return hook


def _gradients(model: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((name, parameter.grad) for name, parameter in model.named_parameters() if parameter.grad is not None)


def _generators(device: torch.device) -> dict[str, Any]:
    return {f"{library}'s generator": value for library, value in generator_states(device).items()}


def _state(model: nn.Module) -> dict[str, Any]:
    """Returns what modules hold beside parameters and buffers, and the global variables beside a user's classes."""
    held: dict[str, Any] = {}
    for name, module in model.named_modules():
        held |= {f"{name}.{attribute}".lstrip("."): value for attribute, value in _attributes(module)}
        if _is_the_users(module):
            home = type(module).__module__
            variables = vars(sys.modules[home]).items()
            held |= {f"{home}.{variable}": value for variable, value in variables if _is_state(variable, value)}
    return held


def _attributes(one: object) -> list[tuple[str, Any]]:
    everything = {**vars(type(one)), **vars(one)}
    return [(name, value) for name, value in everything.items() if name not in _FRAMEWORKS and _is_state(name, value)]


def _is_state(name: str, value: Any) -> bool:
    kinds = (Tensor, Number, str, bytes, list, tuple, Mapping, set, deque, numpy.ndarray, *GENERATORS)
    return not name.startswith("__") and (isinstance(value, kinds) or _is_an_object(value))


def _is_the_users(one: object) -> bool:
    return type(one).__module__.split(".")[0] not in _LIBRARIES


def _is_an_object(value: Any) -> bool:
    """Is it one of a class of the user's own, and no module?"""
    home = type(value).__module__.split(".")[0]
    return _is_the_users(value) and home not in sys.stdlib_module_names and not isinstance(value, nn.Module)


def _hashes(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _hash(value) for name, value in values.items()}


def _hash(value: Any) -> str:
    digest = hashlib.blake2b(digest_size=8)
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: Any, depth: int = 0) -> None:
    """Adds the bits of tensors, containers in their order, sets too, the states of generators and what a user's objects hold; of
    anything else its kind."""
    if depth > _DEEPEST:
        return
    if isinstance(value, Tensor):
        dense = value.detach().to_dense() if value.layout != torch.strided else value.detach()
        digest.update(repr((dense.dtype, dense.shape)).encode())
        digest.update(dense.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, numpy.ndarray | bytes):
        digest.update(bytes(value))
    elif isinstance(value, GENERATORS):
        digest.update(state_of(value))
    elif isinstance(value, Mapping | list | tuple | set | deque):
        digest.update(f"{type(value).__name__} {len(value)} ".encode())
        for part in value.items() if isinstance(value, Mapping) else value:
            _feed(digest, part, depth + 1)
    elif _is_an_object(value) and hasattr(value, "__dict__"):
        _feed(digest, {name: part for name, part in vars(value).items() if _is_state(name, part)}, depth + 1)
    else:
        digest.update((repr(value) if isinstance(value, Number | str | None) else type(value).__name__).encode())
