"""scripts/parity.py with trainer.exact: bits are compared, in the run's own precision."""

from pathlib import Path

import pytest
from capabilities import requires
from in_process import plain

from lockstep.runs.composition import compose

pytestmark = [pytest.mark.slow, requires("synthetic")]
TINY = ("datamodule=synthetic_images", "datamodule.shape=[1,4,4]", "datamodule.length=40", "datamodule.val_length=11")
RUN = (*TINY, "datamodule.batch_size=4", "trainer=cpu", "trainer.devices=2", "trainer.exact=2", "parity.steps=3")

PLAIN = ("trainer=cpu", "trainer.devices=2", "trainer.exact=2", "parity.steps=3", "test=false", "~model", "~datamodule")
PLAIN += ("+model._target_=plain_modules.Plain", "+datamodule._target_=plain_modules.Ragged", "+datamodule.batch_size=3")
PLAIN += ("optimized_metric=val/error", "optimized_mode=min")


def test_what_depends_on_the_process_is_named_to_the_last_bit(tmp_path: Path) -> None:
    verdict, processes_of = (pytest.importorskip(f"lockstep.extras.parity.{name}") for name in ("verdict", "processes"))
    verdicts = {}
    with processes_of.Processes(2, tmp_path) as processes:
        for model in ("lockstep.models.Classifier", "exact_modules.UsesRank"):
            said: list[str] = []
            overrides = plain(*RUN, f"model._target_={model}")
            equal = verdict.parity(
                lambda more, given=overrides: compose(*given, *more, config_name="parity"), said.append, processes
            )
            verdicts[model] = equal, "\n".join(said)
        said = []
        equal = verdict.parity(lambda more: compose(*PLAIN, *more, config_name="parity"), said.append, processes)
        assert equal, "\n".join(said)
    equal, said = verdicts["lockstep.models.Classifier"]
    assert equal, said
    assert {line.split()[-2] for line in said.splitlines() if line.startswith(("loss", "gradients", "weights"))} == {"0"}
    equal, said = verdicts["exact_modules.UsesRank"]
    assert not equal
    assert "Not equal, first in step 0" in said
