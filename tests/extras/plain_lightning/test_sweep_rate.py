"""What the sweeps of conf/sweep set of data that knows nothing of Lockstep."""

from contextlib import nullcontext
from typing import Any

import pytest
from omegaconf import OmegaConf

from lockstep.errors import ConfigError
from lockstep.extras.plain_lightning.swept import check_data

PLAIN = {"_target_": "plain_lightning.DigitsData", "batch_size": 100}
OURS = {"_target_": "lockstep.datamodules.Digits", "standardize": False}


@pytest.mark.parametrize(
    ("sweep", "data", "needed"),
    [
        ("folds", PLAIN, "fold"),
        ("folds", OURS, None),
        ("strong_scaling", {"_target_": "lightning_modules.Vectors"}, "batch_size"),
    ],
)
def test_data_that_does_not_take_it_is_refused_before_the_first_job(
    sweep: str, data: dict[str, Any] | None, needed: str | None
) -> None:
    config = OmegaConf.create({"datamodule": data, "hydra": {"runtime": {"choices": {"sweep": sweep}}}})
    with pytest.raises(ConfigError, match=f"^sweep={sweep}: datamodule has no {needed}; accepted") if needed else nullcontext():
        check_data(config)
