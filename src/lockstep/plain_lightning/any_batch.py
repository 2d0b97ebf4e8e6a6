"""Find the tensors and count the samples in a batch of any structure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def leaves(batch: Any, name: str = "batch") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a batch with its path, in nested tuples, dictionaries or dataclasses."""
    if isinstance(batch, Tensor):
        yield name, batch
    for key, part in _parts(batch):
        yield from leaves(part, f"{name}.{key}")


def _parts(batch: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        yield from zip(batch._fields, batch, strict=True)  # pyright: ignore[reportAttributeAccessIssue]
    elif isinstance(batch, list | tuple):
        yield from enumerate(batch)
    elif isinstance(batch, Mapping):
        yield from batch.items()
    elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        yield from enumerate(batch)
    elif is_dataclass(batch) and not isinstance(batch, type):
        yield from ((field.name, getattr(batch, field.name)) for field in fields(batch))


def samples_in(batch: Any) -> int | None:
    """Return the number of samples of a batch: the length of its first tensor that has dimensions, or None without one."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else None
    return next((number for _, part in _parts(batch) if (number := samples_in(part)) is not None), None)
