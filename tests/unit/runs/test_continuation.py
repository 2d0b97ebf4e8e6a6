"""A run that is resumed: what the checkpoint's state would overrule is refused."""

from pathlib import Path

import pytest
from in_process import prepared, trained

from lockstep.errors import ConfigError

OPTIONS = ("trainer.max_epochs=1", "model/lr_scheduler=cosine")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After an epoch of four batches of 300, at a rate of 0.002."""
    run = tmp_path_factory.mktemp("first")
    trained(run, *OPTIONS)
    return run / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("model.optimizer.lr=1e-4", "model.optimizer.lr=0.0001: {} was trained with 0.002, {}; use 0.002, or a new run"),
    ],
)
def test_another_rate_is_refused(override: str, line: str, checkpoint: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        prepared(checkpoint.parents[1], *OPTIONS, "trainer.max_epochs=2", override, ckpt_path=checkpoint)
    assert str(refused.value).startswith(line.format(checkpoint, "and goes on with it"))
