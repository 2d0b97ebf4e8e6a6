"""What a plan refuses because torch would compute it wrongly."""

import pytest
from omegaconf import DictConfig
from refusals import changed

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError

ON_CPU = {"trainer.accelerator": "cpu"}


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_cuda_graphs_of_a_net_do_not_accumulate(mode: str, shipped: DictConfig) -> None:
    compiled = {"model.compile": True, "model.compile_mode": mode, "trainer.accumulate_grad_batches": 2}
    cfg = changed(shipped, **compiled)
    Plan.from_config(changed(cfg.copy(), **ON_CPU))
    changed(cfg, **{"trainer.accelerator": "gpu"})
    with pytest.raises(ConfigError, match=f"^model.compile_mode={mode}: overwrites the gradients to which .*=2 adds"):
        Plan.from_config(cfg, node_gpus=1)
    Plan.from_config(changed(cfg, **{"model.compile": False}), node_gpus=1)
