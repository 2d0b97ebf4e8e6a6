"""Tokens per second, and what part of a device's peak they take."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from language_models import language_model
from unwatched import unwatched

from lockstep.errors import ConfigError
from lockstep.extras.language.token_throughput import TokenThroughput, find_peak


def trainer(**options: Any) -> Any:
    return SimpleNamespace(**{"global_step": 0, "precision": "32-true", "world_size": 2, **options})


def test_utilisation_by_hand(caplog: pytest.LogCaptureFixture) -> None:
    """Three windows of two tokens a second, 50 operations each, on two devices of 1000: 300 of 2000."""
    model: Any = language_model()
    model.net.flops_per_token = 50.0
    throughput = TokenThroughput(peak_flops=1000)
    throughput.on_train_start(trainer(), model)
    rates = throughput.rates(trainer(), model, 3.0)
    assert rates == {
        "throughput/samples_per_second": 3.0,
        "throughput/tokens_per_second": 6.0,
        "throughput/mfu": pytest.approx(0.15),
    }
    assert throughput.facts() == {}  # the first warms up
    for rate in (1.0, 2.0, 30.0):
        throughput.rates(trainer(), model, rate)
    assert throughput.facts() == {"tokens_per_second": 4.0, "mfu": pytest.approx(0.1)}
    assert "unknown" not in caplog.text


def test_what_is_not_known_is_said_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    model: Any = language_model()
    with caplog.at_level("INFO"):
        for flops in (50.0, None):
            model.net.flops_per_token = flops
            throughput = TokenThroughput()
            throughput.on_train_start(trainer(), model)
    assert caplog.messages == [
        "Model FLOPs utilisation is unknown for a CPU in 32-true: set callbacks.throughput.peak_flops",
        "Model FLOPs utilisation is unknown for a CPU in 32-true: the net has no flops_per_token",
    ]
    assert set(throughput.rates(trainer(), model, 3.0)) == {"throughput/samples_per_second", "throughput/tokens_per_second"}
    throughput.rates(trainer(), model, 3.0)
    assert throughput.facts() == {"tokens_per_second": 6.0, "mfu": None}


def test_a_model_without_tokens_is_refused() -> None:
    model: Any = SimpleNamespace(device=torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"^callbacks=tokens: counts those of language models, not of a SimpleNamespace$"):
        TokenThroughput().on_train_start(trainer(), model)


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16-mixed", 989e12),
        ("NVIDIA A100-SXM4-80GB", "32-true", 19.5e12),
        ("NVIDIA T400", "16-mixed", None),
        ("a CPU", "32-true", None),
    ],
)
def test_the_peak_of_a_device_by_its_name(name: str, precision: str, peak: float | None) -> None:
    assert find_peak(name, precision) == peak


def test_it_is_watched_in_all_its_hooks() -> None:
    assert unwatched(TokenThroughput) == []
