"""The loss by hand; over tokens, not over batches."""

import math

import pytest
import torch
from language_models import language_model
from torch import Tensor

from lockstep.language.tokens import NOT_COUNTED


def logits(*probabilities: list[float]) -> Tensor:
    """One window of two places, whose softmax these are."""
    return torch.tensor([probabilities], dtype=torch.float64).log()


EVEN, SURE = [1 / 4] * 4, [1 / 8, 1 / 8, 1 / 2, 1 / 4]


class Given(torch.nn.Module):
    """A net whose outputs are given."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, tokens: Tensor) -> Tensor:
        return self.outputs


def stepped(outputs: Tensor, targets: list[list[int]]) -> tuple[Tensor, dict[str, float], float]:
    """The loss of a step, what it logs, and as a mean over how many tokens."""
    model, logged, weights = language_model(), {}, []
    model.net = Given(outputs)

    def log(name: str, value: Tensor, batch_size: Tensor, **_: object) -> None:
        logged[name] = float(value)
        weights.append(float(batch_size))

    model.log = log
    wanted = torch.tensor(targets)
    return model.training_step((wanted, wanted), 0), logged, weights[0]


def test_a_place_without_a_target_counts_for_nothing_and_has_no_gradient() -> None:
    outputs = logits(EVEN, SURE).requires_grad_()
    loss, logged, tokens = stepped(outputs, [[1, NOT_COUNTED]])
    assert loss.item() == pytest.approx(math.log(4) / 2)  # of a window of two, as in any other window
    assert (logged["train/loss"], tokens) == (pytest.approx(math.log(4)), 1)
    loss.backward()
    assert outputs.grad is not None
    assert outputs.grad[0, 0].any()
    assert not outputs.grad[0, 1].any()
