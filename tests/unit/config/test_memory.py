"""Values that ask for more memory than there is: one line that names the slip, before anything is made."""

from typing import Any

import pytest
from torch import nn

from lockstep.config.construct import construct
from lockstep.config.memory import check_memory, memory
from lockstep.datamodules.random_regression import RandomRegression
from lockstep.datamodules.synthetic_images import SyntheticImages
from lockstep.errors import ConfigError

HUGE = 10**12
IMAGES = {"shape": (1, 4, 4), "num_classes": 2, "length": 8, "val_length": 8, "test_length": 8}
PAIRS = {"in_features": 2, "out_features": 2, "length": 8, "val_length": 8, "test_length": 8, "teacher": True, "noise": 0.1}


def test_the_largest_of_the_values_is_named() -> None:
    check_memory("model", {"width": 4}, memory())
    with pytest.raises(
        ConfigError, match=r"^model.sizes=\[3, 70\]: takes .* GiB of memory, and this machine has .* GiB; accepted"
    ):
        check_memory("model", {"width": 40, "is_wide": True, "sizes": [3, 70], "name": "x"}, memory() + 1)


@pytest.mark.parametrize("name", ["num_classes", "length", "val_length", "test_length"])
def test_more_images_than_fit_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^datamodule.{name}={HUGE}: takes"):
        SyntheticImages(**IMAGES | {name: HUGE})


def test_larger_images_than_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^datamodule.shape=\[3, 999999, 999999\]: takes"):
        SyntheticImages(**IMAGES | {"shape": (3, 999999, 999999)})


@pytest.mark.parametrize("name", ["in_features", "out_features", "length", "val_length", "test_length"])
def test_more_numbers_than_fit_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^datamodule.{name}={HUGE}: takes"):
        RandomRegression(**PAIRS | {name: HUGE})


@pytest.mark.parametrize(
    ("named", "sizes"),
    [
        ("augment.crop=999999", {"augment": {"crop": 999999}}),
        (f"batch_size={HUGE}", {"augment": {"crop": 1}, "batch_size": HUGE}),
        (f"global_batch_size={HUGE}", {"augment": {"crop": 1}, "batch_size": HUGE // 2, "global_batch_size": HUGE}),
    ],
)
def test_images_padded_beyond_memory_are_refused_by_the_key_that_was_given(named: str, sizes: dict[str, Any]) -> None:
    data = SyntheticImages(**IMAGES | {"shape": (3, 32, 32)} | sizes)
    with pytest.raises(ConfigError, match=rf"^datamodule.{named}: takes"):
        data.setup("fit")


@pytest.mark.parametrize("width", [HUGE, 10**18, 10**19, 10**30])
def test_what_torch_can_not_allocate_or_count_names_the_key(width: int) -> None:
    node = {"_target_": "torch.nn.Linear", "in_features": 3, "out_features": width}
    with pytest.raises(ConfigError, match=rf"^model.net.out_features={width}: takes more memory than could be had, and this"):
        construct("model.net", node)
    assert isinstance(construct("model.net", node | {"out_features": 5}), nn.Linear)
