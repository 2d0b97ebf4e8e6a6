"""What a plan refuses because torch would compute it wrongly."""

from collections.abc import Callable

import pytest
from omegaconf import DictConfig

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_cuda_graphs_of_a_net_do_not_accumulate(mode: str, compose: Callable[..., DictConfig]) -> None:
    compiled = ("model.compile=true", f"model.compile_mode={mode}", "trainer.accumulate_grad_batches=2")
    Plan.from_config(compose(*compiled, "trainer.accelerator=cpu"))
    with pytest.raises(ConfigError, match=f"^model.compile_mode={mode}: overwrites the gradients to which .*=2 adds"):
        Plan.from_config(compose(*compiled, "trainer.accelerator=gpu"), node_gpus=1)
