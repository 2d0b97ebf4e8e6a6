"""Random numbers that a training draws outside of lockstep.counter_rng: whose, and what remains without their chance."""

import functools
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lockstep.parity.sides import LIBRARIES

TORCH, NUMPY, PYTHON = LIBRARIES
_SEED = 0
_WHOLE = {"choice", "permutation", "shuffle", "dirichlet", "multinomial"}  # what these draw belongs together
_NUMPY = {"rand", "randn", "random", "random_sample", "sample", "uniform", "normal", "standard_normal", "randint"} | {
    *("binomial", "beta", "gamma", "exponential", "poisson", "laplace", *_WHOLE)
}
_PYTHON = {"random", "uniform", "triangular", "randint", "randrange", "choice", "choices", "shuffle", "sample", "gauss"} | {
    *("normalvariate", "betavariate")
}
_TORCH = {"rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "normal", "normal_", "uniform_"} | {
    *("exponential_", "random_", "log_normal_", "cauchy_", "geometric_", "bernoulli", "bernoulli_")
}


def states() -> dict[str, Any]:
    """Of the generators that are global to the process, but torch's, which is seeded at every batch."""
    return {NUMPY: numpy.random.get_state(legacy=False)["state"]["key"].tobytes(), PYTHON: random.getstate()} | {
        "position": numpy.random.get_state(legacy=False)["state"]["pos"]
    }


def drawn_between(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """The libraries whose generators have moved on."""
    changed = {name for name, state in before.items() if state != after[name]}
    return (changed - {"position"}) | ({NUMPY} if "position" in changed else set())


@contextmanager
def constant_draws(libraries: Collection[str]) -> Iterator[None]:
    """Every draw of these libraries gives one and the same number, however many are drawn: so it depends on no process.

    Left alone are generators of one's own, as samplers have, and what has been imported by name.
    """
    with ExitStack() as stack:
        if TORCH in libraries:
            stack.enter_context(_Constant())
        if NUMPY in libraries:
            _patch(stack, numpy.random, _NUMPY, lambda: numpy.random.seed(_SEED))
        if PYTHON in libraries:
            _patch(stack, random, _PYTHON, lambda: random.seed(_SEED))
        yield


def _patch(stack: ExitStack, module: Any, names: Collection[str], seed: Callable[[], None]) -> None:
    for name in names:
        stack.enter_context(patch.object(module, name, _constant(getattr(module, name), name, seed)))


def _constant(draw: Callable[..., Any], name: str, seed: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(draw)
    def drawn(*arguments: Any, **named: Any) -> Any:
        seed()
        values = draw(*arguments, **named)
        if isinstance(values, numpy.ndarray) and values.size and name not in _WHOLE:
            values[...] = values.flat[0]
        return values

    return drawn


class _Constant(TorchFunctionMode):
    """bernoulli keeps, with a probability of one half at least; any other draw fills its tensor with one number."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name not in _TORCH or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        if name.startswith("bernoulli"):
            return _kept(name, *args, **kwargs)
        torch.manual_seed(_SEED)
        drawn = func(*args, **kwargs)
        with torch.no_grad():
            return drawn.fill_(drawn.flatten()[0]) if drawn.numel() else drawn


def _kept(name: str, tensor: Tensor, p: Any = None, **_: Any) -> Tensor:
    if name == "bernoulli":
        return (tensor >= 0.5).to(tensor.dtype) if p is None else torch.full_like(tensor, float(p >= 0.5))
    return tensor.copy_(torch.as_tensor(0.5 if p is None else p).ge(0.5))
