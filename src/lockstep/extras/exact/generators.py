"""Generators that a model holds: their draws so far depend on how many workers their process is."""

import pickle
import random
from typing import Any

import numpy
import torch
from torch import nn

GENERATORS = (torch.Generator, numpy.random.Generator, numpy.random.RandomState, random.Random)


class OwnGenerators:
    """The generators that are attributes of modules, by name."""

    def __init__(self, model: nn.Module) -> None:
        self._held = {
            f"{name}.{attribute}".lstrip("."): value
            for name, module in model.named_modules()
            for attribute, value in vars(module).items()
            if isinstance(value, GENERATORS)
        }

    def states(self) -> dict[str, bytes]:
        return {name: state_of(generator) for name, generator in self._held.items()}


def state_of(generator: Any) -> bytes:
    """Return another value after something has been drawn; nothing for random.SystemRandom, which has no state."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, numpy.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    if isinstance(generator, numpy.random.RandomState):
        return pickle.dumps(generator.get_state())
    return b"" if isinstance(generator, random.SystemRandom) else pickle.dumps(generator.getstate())
