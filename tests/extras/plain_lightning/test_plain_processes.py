"""What processes of a plain module compare and exchange, in a gloo group."""

import random
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
from lightning import LightningModule
from ranks import in_ranks
from torch import Tensor, nn

from lockstep.extras.plain_lightning.processes import (
    GATHERED,
    buffers_that_differ,
    gather_unequal_lengths,
    generator_states,
    weights_that_differ,
)


class Gathers(LightningModule):
    def __init__(self, centre: float) -> None:
        super().__init__()
        self.register_buffer("centre", torch.tensor([centre, 1.0]))
        self.own, self.same = nn.Parameter(torch.tensor([centre, torch.nan])), nn.Parameter(torch.ones(2))
        self.register_buffer("mask", torch.full((2,), -torch.inf))

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """As the strategy's, which wants tensors of one shape."""
        everyone = [torch.empty_like(data) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, data)
        return torch.stack(everyone)


def exchanged(rank: int, _: int) -> dict[str, Any]:
    module, said, may_differ = Gathers(centre=float(rank)), [], [False]
    gather_unequal_lengths(module, lambda: may_differ[0], said.append)
    equal = module.all_gather(torch.full((2, 1), float(rank)))
    may_differ[0] = True
    number: Tensor = module.all_gather(torch.tensor(float(rank)))
    same, said_of_same = module.all_gather(torch.full((2,), float(rank))), list(said)
    rows = module.all_gather(torch.arange(3.0 - rank) + 10 * rank)
    result = {"equal": equal, "number": number, "same": same, "rows": rows, "said": said, "said of same": said_of_same}
    return result | {"buffers": buffers_that_differ(module), "weights": weights_that_differ(module)}


def test_rows_are_repeated_until_all_have_as_many_and_what_is_each_one_s_own_is_named(tmp_path: Path) -> None:
    for values in in_ranks(2, exchanged, tmp_path):
        assert values["equal"].flatten().tolist() == [0.0, 0.0, 1.0, 1.0]
        assert values["number"].tolist() == [0.0, 1.0]
        assert values["same"].tolist() == [[0.0, 0.0], [1.0, 1.0]]
        assert values["rows"].tolist() == [[0.0, 1.0, 2.0], [10.0, 11.0, 11.0]]
        assert (values["said of same"], values["said"]) == ([], [GATHERED])
        assert (values["buffers"], values["weights"]) == (["centre"], ["own"])


def test_the_states_of_generators_show_who_has_drawn() -> None:
    def drawn() -> set[str]:
        after = generator_states(torch.device("cpu"))
        return {library for library, state in before.items() if state != after[library]}

    before = generator_states(torch.device("cpu"))
    assert drawn() == set()
    numpy.random.rand()
    assert drawn() == {"numpy"}
    random.random()
    assert drawn() == {"numpy", "Python"}
    torch.rand(1)
    assert drawn() == {"numpy", "Python", "torch"}
