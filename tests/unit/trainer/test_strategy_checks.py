"""What several processes can't do, and what their strategy says of it before torch is imported."""

from typing import Any

import pytest
from omegaconf import DictConfig
from refusals import changed, refusal, validate

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
    Plan.from_config(changed(cfg.copy(), **ON_CPU))
    changed(cfg, **{"trainer.accelerator": "gpu"})
    with pytest.raises(ConfigError, match=f"^model.compile_mode={mode}: writes over the gradients to which .*=2 adds"):
        Plan.from_config(cfg, node_gpus=1)
    Plan.from_config(changed(cfg, **{"model.compile": False}), node_gpus=1)
