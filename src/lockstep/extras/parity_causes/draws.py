"""Random numbers that a training draws outside of lockstep.counter_rng: what remains without their chance."""

import functools
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_SEED = 0
_DRAW_NOTHING = {"seed", "getstate", "setstate", "get_state", "set_state", "default_rng"}  # nor do classes
_JOINT = {"choice", "permutation", "shuffle", "dirichlet", "multinomial", "multivariate_normal"}  # their numbers belong together
_TORCH_JOINT = {"randperm", "multinomial"}


@contextmanager
def constant_draws(libraries: Collection[str]) -> Iterator[None]:
    """Every draw of these libraries gives one and the same number, however many are drawn: so it depends on no process.

    Left alone are generators of one's own, as samplers have, and what has been imported by name.
    """
    with ExitStack() as stack:
        if "torch" in libraries:
            stack.enter_context(_Constant())
        for library, module in {"numpy": numpy.random, "Python": random}.items():
            for name in module.__all__ if library in libraries else ():
                if name.islower() and name not in _DRAW_NOTHING:
                    stack.enter_context(patch.object(module, name, _constant(module, name)))
        yield


def _constant(module: Any, name: str) -> Callable[..., Any]:
    draw = getattr(module, name)

    @functools.wraps(draw)
    def drawn(*arguments: Any, **named: Any) -> Any:
        module.seed(_SEED)
        values = draw(*arguments, **named)
        if isinstance(values, numpy.ndarray) and values.size and name not in _JOINT:
            values[...] = values.flat[0]
        return values

    return drawn


class _Constant(TorchDispatchMode):
    """What torch's operators draw, whichever of its functions calls them: bernoulli keeps, with a probability of one half at
    least; RReLU takes its mean slope; any other draw fills its tensor with one number, but for what belongs together.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        has_generator = any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values()))
        if torch.Tag.nondeterministic_seeded not in func.tags or has_generator:
            return func(*args, **kwargs)
        if name.startswith("bernoulli"):
            return _kept(name, *args, **kwargs)
        if name.startswith("rrelu"):
            return _mean_slope(name, *args, **kwargs)
        torch.manual_seed(_SEED)
        drawn = func(*args, **kwargs)
        is_filled = isinstance(drawn, Tensor) and drawn.numel() and name not in _TORCH_JOINT
        return drawn.fill_(_one_number(func, name, args, kwargs, drawn)) if is_filled else drawn


def _one_number(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], drawn: Tensor) -> Tensor:
    """Returns what is drawn where it is one number: the first of many is another one on CPUs, from 16 normal ones on."""
    names = [argument.name for argument in func._schema.arguments][: len(args)]
    if "size" in names:
        args = tuple(() if name == "size" else value for name, value in zip(names, args, strict=True))
    elif name.endswith(("_", "_like")):
        args = (args[0].new_empty(()), *args[1:])
    else:
        return drawn.flatten()[0]
    torch.manual_seed(_SEED)
    return func(*args, **kwargs)


def _kept(name: str, tensor: Tensor, p: Any = None, **_: Any) -> Tensor:
    if name == "bernoulli":
        return (tensor >= 0.5).to(tensor.dtype) if p is None else torch.full_like(tensor, float(p >= 0.5))
    return tensor.copy_(torch.as_tensor(0.5 if p is None else p).ge(0.5))


def _mean_slope(name: str, x: Tensor, noise: Tensor, lower: float, upper: float, training: bool = False, *_: Any) -> Tensor:
    """`noise` is what the gradient is multiplied by."""
    slope = torch.where(x <= 0, (lower + upper) / 2, 1.0).to(x.dtype)
    if training:
        noise.copy_(slope)
    return x.mul_(slope) if name.endswith("_") else x * slope
