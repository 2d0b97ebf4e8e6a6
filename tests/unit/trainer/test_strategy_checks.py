"""What several processes can't do, and what their strategy says of it before torch is imported."""

from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from refusals import changed, refusal, validate

from lockstep.config.class_checks import check_classes
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError

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


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_cuda_graphs_of_a_net_do_not_accumulate(mode: str, shipped: DictConfig) -> None:
    compiled = {"model.compile": True, "model.compile_mode": mode, "trainer.accumulate_grad_batches": 2}
    cfg = changed(shipped, **compiled)
    check_classes(cfg, Plan.from_config(changed(cfg.copy(), **ON_CPU)))
    on_gpu = Plan.from_config(changed(cfg, **{"trainer.accelerator": "gpu"}), node_gpus=1)
    with pytest.raises(ConfigError, match=f"^model.compile_mode={mode}: writes over the gradients to which .*=2 adds"):
        check_classes(cfg, on_gpu)
    check_classes(changed(cfg, **{"model.compile": False}), on_gpu)


def test_another_backend_is_accepted_where_torch_has_it(shipped: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = changed(shipped, **ON_CPU, **{"trainer.devices": 2, "trainer.strategy.process_group_backend": "mpi"})
    if not torch.distributed.is_mpi_available():
        words = "accepted is nccl, gloo, another one that this torch was built with, or null"
        assert refusal(cfg) == f"trainer.strategy.process_group_backend=mpi: {words}"
    monkeypatch.setattr("torch.distributed.is_backend_available", lambda name: name == "mpi")
    validate(cfg)
