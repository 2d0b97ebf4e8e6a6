"""BatchNorm over all processes, of which the others are made up."""

import pytest
import torch

from lockstep.trainer import batchnorm


@pytest.mark.parametrize("process", ["the one with the value", "the other"])
def test_one_value_a_channel_is_refused_as_on_one_process(process: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variance of one value is none: torch raises on one process, and so does each of several."""
    value = torch.tensor([1.0, 1.0, 1.0])
    current, other = (1, 0) if process == "the one with the value" else (0, 1)
    monkeypatch.setattr(batchnorm, "_gather", lambda own: torch.stack([own, torch.stack([value, 0 * value, other * value])]))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        batchnorm._batch_norm(torch.randn(current, 3), None, None, training=True)


def test_two_values_on_two_processes_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batchnorm, "_gather", lambda own: torch.stack([own, own + 1 * (own == own[0])]))
    assert batchnorm._batch_norm(torch.randn(1, 3), None, None, training=True).shape == (1, 3)


def test_a_dummy_of_one_value_a_channel_becomes_zero_and_has_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batchnorm, "_gather", lambda own: torch.stack([own, torch.full_like(own, 2)]))
    dummy = torch.randn(1, 3, requires_grad=True)
    with batchnorm.without_statistics():
        y = batchnorm._batch_norm(dummy, None, None, torch.ones(3), torch.ones(3), training=True)
    y.sum().backward()
    assert y.count_nonzero() == torch.as_tensor(dummy.grad).count_nonzero() == 0
