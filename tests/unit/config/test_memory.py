"""Values that ask for more memory than there is: one line that names the slip, before anything is made."""

import pytest
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


@pytest.mark.parametrize("width", [HUGE, 10**30])
def test_what_torch_can_not_allocate_or_count_names_the_key(width: int) -> None:
    node = {"_target_": "torch.nn.Linear", "in_features": 3, "out_features": width}
    with pytest.raises(ConfigError, match=rf"^model.net.out_features={width}: takes more memory than could be had, and this"):
        construct("model.net", node)
    assert isinstance(construct("model.net", node | {"out_features": 5}), nn.Linear)
