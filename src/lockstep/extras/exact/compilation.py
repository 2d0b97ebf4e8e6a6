"""Graphs of torch.compile that depend on the shape of a batch alone: each process meets other shapes, in another order."""

from contextlib import ExitStack
from typing import Any

import torch._dynamo.config
import torch._inductor.config

_SHAPES = 64  # that have a graph in each function; torch computes all others without one


def compiled_by_shape() -> ExitStack:
    """Return a context that has been entered. In it torch makes a graph for each shape, not one for all lengths of a dimension
    that has changed, and chooses no kernel by the time that it takes."""
    settings: list[tuple[Any, dict[str, Any]]] = [
        (torch._dynamo.config, {"automatic_dynamic_shapes": False, "cache_size_limit": _SHAPES}),
        (torch._inductor.config, {"deterministic": True}),
    ]
    stack = ExitStack()
    for config, values in settings:
        known = {name: value for name, value in values.items() if hasattr(config, name)}  # not every torch has `deterministic`
        stack.enter_context(config.patch(known))
    return stack
