"""Values that ask for more memory than there is: one line that names the slip, before anything is made."""

from typing import Any

import pytest
from synthetic import Images
from torch import nn

from lockstep.config.construct import construct
from lockstep.config.memory import check_memory, memory
from lockstep.errors import ConfigError

HUGE = 10**12


def test_the_largest_of_the_values_is_named() -> None:
    check_memory("model", {"width": 4}, memory())
    with pytest.raises(
        ConfigError, match=r"^model.sizes=\[3, 70\]: takes .* GiB of memory, and this machine has .* GiB; accepted"
    ):
        check_memory("model", {"width": 40, "is_wide": True, "sizes": [3, 70], "name": "x"}, memory() + 1)


@pytest.mark.parametrize(
    ("named", "sizes"),
    [
        ("augment.crop=999999", {"augment": {"crop": 999999}}),
        (f"batch_size={HUGE}", {"augment": {"crop": 1}, "batch_size": HUGE}),
        (f"global_batch_size={HUGE}", {"augment": {"crop": 1}, "batch_size": HUGE // 2, "global_batch_size": HUGE}),
    ],
)
def test_images_padded_beyond_memory_are_refused_by_the_key_that_was_given(named: str, sizes: dict[str, Any]) -> None:
    data = Images((3, 32, 32), **sizes)
    with pytest.raises(ConfigError, match=rf"^datamodule.{named}: takes"):
        data.setup("fit")


@pytest.mark.parametrize("width", [HUGE, 10**18, 10**19, 10**30])
def test_what_torch_can_not_allocate_or_count_names_the_key(width: int) -> None:
    node = {"_target_": "torch.nn.Linear", "in_features": 3, "out_features": width}
    with pytest.raises(ConfigError, match=rf"^model.net.out_features={width}: takes more memory than could be had, and this"):
        construct("model.net", node)
    assert isinstance(construct("model.net", node | {"out_features": 5}), nn.Linear)
