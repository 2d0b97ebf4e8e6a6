"""Quoting for Hydra's grammar, and groups that are left out."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from lockstep.cli import _as_hydra_reads
from lockstep.config.overrides import quote, values_by_key


def test_no_logger_and_no_data_are_choices_too() -> None:
    given = ["seed=1", "logger=null", "datamodule=null", "init_from=epoch=1.ckpt"]
    assert [*map(_as_hydra_reads, given)] == ["seed=1", "~logger", "datamodule=none", "init_from='epoch=1.ckpt'"]


ODD = ["plain", "/data/with space/run 1", "it's", "a,b", "key=value", "null", "", "ends in \\"]


@pytest.mark.parametrize("value", ODD)
def test_a_quoted_value_is_read_back_unchanged(value: str) -> None:
    assert values_by_key([f"hydra.run.dir={quote(value)}"]) == {"hydra.run.dir": value}
    assert OverridesParser.create().parse_override(f"key={quote(value)}").value() == value
