"""What trainer.exact makes of a config, and what does not go with it."""

from collections.abc import Callable

import pytest
from omegaconf import DictConfig

from lockstep.errors import ConfigError
from lockstep.runs.validation import validated

WRONG = {
    ("trainer.exact=3",): "trainer.exact=3: use a power of two",
    ("trainer.exact=4", "trainer.devices=3"): "trainer.devices=3: ",
    ("trainer.exact=4", "trainer.accumulate_grad_batches=2"): "trainer.accumulate_grad_batches=2: ",
    ("trainer.exact=4", "datamodule.global_batch_size=30"): "datamodule.global_batch_size=30: use a multiple of",
}


def test_the_batch_is_that_of_all_workers_and_what_can_not_be_is_named(compose: Callable[..., DictConfig]) -> None:
    for devices in (1, 4):
        cfg = compose("trainer=cpu", "trainer.exact=4", f"trainer.devices={devices}", "datamodule.batch_size=8")
        validated(cfg)
        assert (cfg.datamodule.global_batch_size, cfg.trainer.sync_batchnorm) == (32, False)
    for overrides, line in WRONG.items():
        with pytest.raises(ConfigError) as refused:
            validated(compose("trainer=cpu", *overrides))
        assert str(refused.value).startswith(line)
