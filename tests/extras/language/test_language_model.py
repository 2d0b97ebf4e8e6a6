"""Loss and perplexity, by hand; over tokens, not over batches."""

import math
from pathlib import Path

import pytest
import torch
from in_process import prepared
from language_models import METRICS, TINY, language_model, texts
from torch import Tensor

from lockstep.extras.language.tokens import NOT_COUNTED


def logits(*probabilities: list[float]) -> Tensor:
    """One window of two places, whose softmax these are."""
    return torch.tensor([probabilities], dtype=torch.float64).log()


EVEN, SURE = [1 / 4] * 4, [1 / 8, 1 / 8, 1 / 2, 1 / 4]


def test_sums_of_a_window_by_hand() -> None:
    values = language_model().measure(logits(EVEN, SURE), torch.tensor([[1, 2]]))
    # log 4 + log 2 nats, over two places
    assert {name: value.tolist() for name, value in values.items()} == {
        "loss": [pytest.approx(math.log(8) / 2)],
        "nats": [pytest.approx(math.log(8))],
        "tokens": [2],
    }


def test_a_place_without_a_target_counts_for_nothing_and_has_no_gradient() -> None:
    outputs = logits(EVEN, SURE).requires_grad_()
    values = language_model().measure(outputs, torch.tensor([[1, NOT_COUNTED]]))
    assert values["loss"].tolist() == [pytest.approx(math.log(4) / 2)]  # of a window of two, as in any other window
    assert values["tokens"].tolist() == [1]
    values["loss"].sum().backward()
    assert outputs.grad is not None
    assert outputs.grad[0, 0].any()
    assert not outputs.grad[0, 1].any()


def test_metrics_are_over_tokens_not_over_batches() -> None:
    model = language_model()
    for targets in ([[1, 2]], [[0, NOT_COUNTED]]):  # log 8 nats, 2 tokens; log 4 nats, 1 token
        model.val_means.update(model.measure(logits(EVEN, SURE), torch.tensor(targets)))
    result = model.val_means.compute()
    assert tuple(result) == METRICS
    assert float(result["loss"]) == pytest.approx(math.log(32) / 3, rel=1e-12)
    assert float(result["perplexity"]) == pytest.approx(32 ** (1 / 3), rel=1e-12)


def test_a_window_that_is_partly_empty_is_scored_by_the_tokens_in_it(tmp_path: Path) -> None:
    score = pytest.importorskip("score")  # of the curriculum
    datamodule, model, _ = prepared(tmp_path, *TINY, *texts(tmp_path))
    losses, parts = score.compute_losses(model, datamodule)
    inputs, targets = datamodule.splits.train.__getitems__(range(len(parts)))
    with torch.no_grad():
        logits = model.eval()(inputs).double()
    each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
    counted = (targets != -100).sum(dim=1)
    assert 0 < counted[-1] < 16
    assert parts.tolist() == counted.tolist()
    torch.testing.assert_close(losses, each.view(targets.shape).sum(dim=1) / counted, rtol=1e-5, atol=1e-6)
