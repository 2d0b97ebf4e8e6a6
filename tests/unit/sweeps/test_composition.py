"""Jobs as they are composed: each point once, and none that is too large."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_sweep
import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from lockstep.launchers.environment import register_resolvers
from lockstep.places import CONF
from lockstep.sweeps.local import LocalExecutor
from lockstep.sweeps.settings import LocalSettings
from lockstep.sweeps.sweep import RefusedJob, Sweep


@pytest.fixture(scope="module")
def master() -> Iterator[tuple[DictConfig, Any]]:
    register_resolvers()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        engine: Any = GlobalHydra.instance().hydra
        config = engine.compose_config(
            "train",
            ["trainer=cpu", "debug=fast", "hydra.sweep.dir=there", "seed=0"],
            RunMode.MULTIRUN,
            with_log_configuration=False,
        )
        HydraConfig.instance().set_config(config)
        yield config, engine.config_loader


def test_the_same_point_is_one_job(
    master: tuple[DictConfig, Any], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """However it is spelled; the sweeper hears of it as often as it has asked."""
    settings = LocalSettings(dry_run=True)
    sweep = Sweep(*master, settings, LocalExecutor.from_settings(settings, fake_sweep.run_code))
    rates = [[f"model.optimizer.lr={rate}"] for rate in ("1e-3", "3e-3", "0.001", "1E-3")]
    returned = sweep.launch(rates)
    assert [one.overrides for one in returned] == [[*rates[0]], [*rates[1]], [*rates[0]], [*rates[0]]]
    assert capsys.readouterr().out.count("1 process(es)") == 2
    assert caplog.messages == ["2 of 4 jobs are those of other ones, spelled again: each is run once"]


def test_a_job_that_goes_on_takes_new_values_of_keys_that_are_not_its_identity(
    master: tuple[DictConfig, Any], tmp_path: Path
) -> None:
    """It went on with the values that it had saved, without a word."""
    settings, point = LocalSettings(), "model.optimizer.lr=1e-3"
    sweep = Sweep(*master, settings, LocalExecutor.from_settings(settings, fake_sweep.run_code))
    sweep.directory = tmp_path
    (job,) = sweep.check([[point]])
    assert sweep.sweep_jobs.register([job]) == [job]
    assert job.command[3:] == ()
    assert sweep.check([[point]])[0].command[3:] == ()
    (again,) = sweep.check([[point, "fresh_processes=true", "mirror=a b"]])
    assert (again.key, again.command[3:]) == (job.key, ("fresh_processes=true", "mirror='a b'"))


def test_a_job_that_is_too_large_for_its_cores_is_refused_before_the_sweep_begins(
    master: tuple[DictConfig, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.sweeps.local.cores", lambda: {0, 1})
    monkeypatch.setattr("lockstep.config.plan.visible_cores", lambda: 2)
    settings = LocalSettings(dry_run=True, jobs=2)
    sweep = Sweep(*master, settings, LocalExecutor.from_settings(settings, fake_sweep.run_code))
    sweep.launch([["trainer.devices=8"], ["datamodule.num_workers=8"]])
    few = "each of the launcher's jobs has 1 core(s); use up to 8, or more with max_processes_per_core"
    for override in ("trainer.devices=16", "datamodule.num_workers=9"):
        with pytest.raises(RefusedJob, match=re.escape(f"job 0 ({override}): {override}: {few}")):
            sweep.launch([[override]])
