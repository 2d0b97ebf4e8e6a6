"""What several processes can't do, and what their strategy says of it before torch is imported."""

from typing import Any

import pytest
from omegaconf import DictConfig
from refusals import changed, refusal, validate

ON_CPU = {"trainer.accelerator": "cpu"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"trainer.strategy.static_graph": True, "trainer.accumulate_grad_batches": 2},
            "trainer.strategy.static_graph=true: DDP then exchanges gradients in every backward",
        ),
        (
            {"trainer.strategy.process_group_backend": "nccl"},
            "trainer.strategy.process_group_backend=nccl: is for GPUs; accepted is gloo, or null",
        ),
        (
            {"model.optimizer.line_search_fn": "strong_wolfe"},
            "model.optimizer.line_search_fn=strong_wolfe: each process would ask for the loss a number of times",
        ),
    ],
)
def test_what_several_processes_can_not_do_is_refused(changes: dict[str, Any], message: str, shipped: DictConfig) -> None:
    validate(changed(shipped, **ON_CPU, **changes))
    assert refusal(changed(shipped, **{"trainer.devices": 2})).startswith(message)
