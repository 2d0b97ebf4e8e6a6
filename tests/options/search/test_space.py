"""Overrides that Hydra would sweep over, as distributions of Optuna's."""

from typing import Any

import optuna
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from lockstep.errors import ConfigError
from lockstep.search.space import Space


def space(*overrides: str) -> Space:
    return Space.from_overrides(OverridesParser.create().parse_overrides([*overrides]))


@pytest.mark.parametrize(
    ("value", "distribution"),
    [
        ("interval(1e-4,1e-1)", FloatDistribution(1e-4, 1e-1)),
        ("tag(log,interval(1e-4,1e-1))", FloatDistribution(1e-4, 1e-1, log=True)),
        ("int(interval(1,8))", IntDistribution(1, 8)),
        ("range(1,4)", CategoricalDistribution(["1", "2", "3"])),  # as Hydra's range: without its end
        ("1,2,2", CategoricalDistribution(["1", "2"])),
        ("choice([64],[128,'a b'])", CategoricalDistribution(["[64]", "[128,'a b']"])),
    ],
)
def test_each_form_of_hydra_s_is_a_distribution(value: str, distribution: Any) -> None:
    assert space(f"x={value}").distributions == {"x": distribution}


def test_what_is_not_swept_is_the_same_for_all_and_the_last_of_a_key_counts() -> None:
    result = space("x=1,2", "seed=3", "+a.b=[1,2]", "x=interval(0,1)", "~logger")
    assert result.constants == ("seed=3", "+a.b=[1,2]", "~logger=null")
    assert result.distributions == {"x": FloatDistribution(0.0, 1.0)}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("x=tag(lg,interval(1,2))", r"x=tag\(lg,interval\(1,2\)\): tag lg is not known here; use tag"),
        ("x=tag(log,interval(0,1))", r"x=tag\(log,interval\(0,1\)\): .*low.*log"),
        ("x=1", "hydra/sweeper=optuna: there is nothing to search; use an override such as 'model.optimizer.lr="),
    ],
)
def test_what_is_no_space_is_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        space(override)


def test_what_is_drawn_is_written_so_that_it_is_read_back_to_the_bit() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    result = space("seed=1", "x=tag(log,interval(1e-9,1e3))", "n=int(interval(1,4))", "m=choice(mlp,[1,2])")
    for _ in range(20):
        trial = study.ask()
        point = result.point(trial)
        assert result.point(trial) == point
        read = {one.get_key_element(): one.value() for one in OverridesParser.create().parse_overrides([*point])}
        assert read["x"] == trial.params["x"]
        assert read["n"] == trial.params["n"]
        assert (read["seed"], read["m"] in ("mlp", [1, 2])) == (1, True)
