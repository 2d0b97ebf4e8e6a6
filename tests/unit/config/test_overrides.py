"""Quoting for Hydra's grammar, and groups that are left out."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from lockstep.config.overrides import check_single, null_groups_left_out, quote, values_by_key
from lockstep.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["seed=1", "logger=null"], ["seed=1", "~logger"]),
        (["logger=null", "logger=csv"], ["logger=csv"]),
        (["~datamodule"], ["datamodule=none"]),
    ],
)
def test_no_logger_is_a_choice_too(given: list[str], meant: list[str]) -> None:
    assert null_groups_left_out(given) == meant


ODD = [
    "plain",
    "/data/with space/run 1",
    "it's",
    'say "hello"',
    "a,b",
    "key=value",
    "[1,2]",
    "null",
    "",
    "größe/日本",
    "ends in \\",
]


@pytest.mark.parametrize("value", ODD)
def test_a_quoted_value_is_read_back_unchanged(value: str) -> None:
    assert values_by_key([f"hydra.run.dir={quote(value)}"]) == {"hydra.run.dir": value}
    assert OverridesParser.create().parse_override(f"key={quote(value)}").value() == value


def test_the_command_line_of_one_job_of_a_sweep_is_a_single_run() -> None:
    """A job is forked and reproduced by the overrides that it was started with, its sweep=lr among them."""
    params = ["trainer.devices", "+model.optimizer.lr"]
    check_single(["sweep=lr", "trainer.devices=2", "model.optimizer.lr=0.1"], params)
    with pytest.raises(ConfigError, match="sweep=lr: is for sweeps; use -m"):
        check_single(["sweep=lr", "trainer.devices=2"], params)
