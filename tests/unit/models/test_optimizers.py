"""Which parameter is in which group, and what a group can say."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from lockstep.errors import ConfigError
from lockstep.models.optimizers import make_optimizer

SGD = partial(torch.optim.SGD, lr=0.5, weight_decay=0.25)


def net() -> nn.Module:
    """Parameters 0.weight, 0.bias, 1.weight, 1.bias."""
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def groups(**named: Any) -> list[dict[str, Any]]:
    return make_optimizer(SGD, net(), named).param_groups


def test_without_groups_there_is_one_of_all() -> None:
    (group,) = groups()
    assert len(group["params"]) == 4
    assert "match" not in group


def test_a_parameter_is_in_the_first_group_that_matches_and_the_others_come_first() -> None:
    rest, biases, last = groups(
        biases={"match": "bias$", "lr_factor": 64, "weight_decay": 0.0}, last={"match": r"^1\.", "lr": 0.125}
    )
    assert [group["lr"] for group in (rest, biases, last)] == [0.5, 32.0, 0.125]
    assert [group["weight_decay"] for group in (rest, biases, last)] == [0.25, 0.0, 0.25]
    assert [[tuple(p.shape) for p in group["params"]] for group in (rest, biases, last)] == [[(2, 2)], [(2,), (2,)], [(2, 2)]]
    assert not any("lr_factor" in group or "match" in group for group in (rest, biases, last))


@pytest.mark.parametrize(
    ("group", "line"),
    [
        ({"match": "head"}, r"match=head: no parameter is left .* such as 0.weight, 0.bias, 1.weight, 1.bias$"),
        ({"match": "0", "lrr": 1}, r"lrr=1: no such option; use match, lr_factor, lr, .*weight_decay"),
    ],
)
def test_what_makes_no_sense_is_one_line_that_names_the_key(group: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=rf"^model.param_groups.one.{line}"):
        groups(one=group)


def test_a_group_that_others_have_emptied_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^model.param_groups.second.match=weight: no parameter is left"):
        groups(first={"match": "0|1"}, second={"match": "weight"})
