"""Which of the two batch sizes counts: that of all processes by default, that of each where it is given."""

import pytest

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.runs.composition import compose


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        (("experiment=mnist_ddp",), (64, 128)),  # which has a batch_size
        (("experiment=mnist_ddp", "datamodule.global_batch_size=8"), (4, 8)),
    ],
)
def test_one_of_the_two_counts(given: tuple[str, ...], sizes: tuple[int, int]) -> None:
    plan = Plan.from_config(compose("trainer=cpu", "trainer.devices=2", *given))
    assert (plan.batch_size, plan.global_batch_size) == sizes


def test_both_are_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        compose("datamodule.batch_size=16", "datamodule.global_batch_size=64")
    assert str(refused.value) == "datamodule.batch_size=16: is given beside datamodule.global_batch_size=64; use one of the two"
