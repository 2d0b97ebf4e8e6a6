"""One checkpoint from those of the stages of a pipeline, each of which has a part of the numbers."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Path = tuple[Any, ...]


def gather_parts(checkpoint: dict[str, Any], group: dist.ProcessGroup, device: torch.device) -> dict[str, Any]:
    """Return in the first process of the group its checkpoint with what it lacks, on the CPU: tensors without numbers, and the
    optimizer states of parameters. Others return their own. Called by all of the group, which send one after the other."""
    ranks = dist.get_process_group_ranks(group)
    if dist.get_rank(group):
        for path, value in _parts(checkpoint):
            dist.send_object_list([(path, _on_cpu(value))], dst=ranks[0], group=group, device=device)
        dist.send_object_list([None], dst=ranks[0], group=group, device=device)
        return checkpoint
    whole = _copied(checkpoint)
    for source in ranks[1:]:
        received: list[Any] = [None]
        dist.recv_object_list(received, src=source, group=group, device=device)
        while received[0] is not None:
            _put(whole, *received[0])
            dist.recv_object_list(received, src=source, group=group, device=device)
    for optimizer in whole.get("optimizer_states", []):
        optimizer["state"] = dict(sorted(optimizer["state"].items()))
    return whole


def _parts(content: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the tensors that have numbers, and the states of parameters, with the keys that lead to them."""
    if isinstance(content, Tensor):
        if not content.is_meta:
            yield path, content
    elif len(path) == 3 and path[0] == "optimizer_states" and path[2] == "state":
        yield from ((((*path, number), state)) for number, state in content.items())
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from _parts(value, (*path, key))
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield from _parts(value, (*path, number))


def _put(content: Any, path: Path, value: Any) -> None:
    """Put a value where there is none, or a tensor without numbers."""
    *above, last = path
    for key in above:
        content = content[key]
    if isinstance(content, list) or last in content:
        there = content[last]
        if not (isinstance(there, Tensor) and there.is_meta):
            return
    content[last] = value


def _copied(content: Any) -> Any:
    """Return the same containers, copied: what is put into them is not put into the model's or the optimizer's."""
    if isinstance(content, dict):
        return {key: _copied(value) for key, value in content.items()}
    return [_copied(value) for value in content] if type(content) is list else content


def _on_cpu(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _on_cpu(one) for key, one in value.items()}
    return value.detach().cpu() if isinstance(value, Tensor) and not value.is_meta else value
