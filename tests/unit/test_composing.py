"""A run is composed once, where Hydra composes everything a first time only to read hydra.mode."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from lockstep import cli
from lockstep.cli import start


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each composing."""
    found: list[str] = []
    compose_config = Hydra.compose_config

    def counted(*arguments: Any, **named: Any) -> DictConfig:
        found.append("once more")
        return compose_config(*arguments, **named)

    monkeypatch.setattr(Hydra, "compose_config", counted)
    monkeypatch.setattr(Hydra, "get_mode", cli._HYDRAS_WAY)
    return found


@pytest.fixture
def program(tmp_path: Path) -> tuple[Callable[[], None], list[Any]]:
    """Of one key, and what it has been given."""
    given: list[Any] = []

    def note(config: DictConfig) -> None:
        given.append((OmegaConf.to_container(config), OmegaConf.to_container(HydraConfig.instance().cfg)))

    (tmp_path / "train.yaml").write_text("seed: 1")
    return hydra.main(version_base="1.3", config_path=str(tmp_path), config_name="train")(note), given


@pytest.fixture
def _quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # start() sets it; so it is taken back
    quiet = ("hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null")
    monkeypatch.setattr(sys, "argv", ["train.py", f"hydra.run.dir={tmp_path}", *quiet])


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("mode", [(), ("hydra.mode=RUN",)])
def test_a_run_is_composed_once(
    mode: tuple[str, ...], composed: list[str], program: tuple[Callable[[], None], list[Any]]
) -> None:
    """As Hydra would have composed it. When Hydra does so only once by itself, it need not be taught any more."""
    main, given = program
    sys.argv += [*mode, "seed=2"]
    main()
    assert len(composed) == 2
    start(main)
    assert len(composed) == 3
    assert given[0] == given[1]


@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("mistake", ["sead=2", "seed=1,2", "seed=[1"])
def test_a_mistake_takes_no_more_composing_than_hydra_s_own_two(
    mistake: str, composed: list[str], program: tuple[Callable[[], None], list[Any]]
) -> None:
    sys.argv += [mistake]
    with pytest.raises(SystemExit):
        start(program[0])
    assert len(composed) <= 2
    assert not program[1]
