"""What several processes can't do, and what their strategy says of it before torch is imported."""

from typing import Any

import pytest
import torch
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


def test_another_backend_is_accepted_where_torch_has_it(shipped: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = changed(shipped, **ON_CPU, **{"trainer.devices": 2, "trainer.strategy.process_group_backend": "mpi"})
    if not torch.distributed.is_mpi_available():
        words = "accepted is nccl, gloo, another one that this torch was built with, or null"
        assert refusal(cfg) == f"trainer.strategy.process_group_backend=mpi: {words}"
    monkeypatch.setattr("torch.distributed.is_backend_available", lambda name: name == "mpi")
    validate(cfg)
