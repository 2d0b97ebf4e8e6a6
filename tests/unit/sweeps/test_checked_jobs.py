"""Jobs as a sweep composes and checks them, and as it writes them down."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from lockstep.launchers.environment import register_resolvers
from lockstep.places import CONF
from lockstep.sweeps.local import saved_config
from lockstep.sweeps.sweep import Sweep


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    register_resolvers()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        engine: Any = GlobalHydra.instance().hydra
        given = ["trainer=cpu", f"hydra.sweep.dir={tmp_path}", "seed=0", "hydra.launcher.jobs=2"]
        given += ["hydra.job.chdir=true", "+hydra.job.env_set.NCCL_DEBUG=WARN"]
        config = engine.compose_config("train", given, RunMode.MULTIRUN, with_log_configuration=False)
        HydraConfig.instance().set_config(config)
        yield Sweep(config, engine.config_loader)


def test_each_job_s_config_says_what_the_job_chose(sweep: Sweep) -> None:
    """Both had the options of the sweep, by which trackers name what a run belongs to."""
    jobs = sweep.check([["trainer=cpu", f"model={name}"] for name in ("mlp", "cnn")])
    assert sweep.sweep_jobs.register(jobs) == jobs
    names = [OmegaConf.load(job.directory / ".hydra" / "config.yaml").name for job in jobs]
    assert names == ["digits_mlp", "digits_cnn"]


@pytest.mark.parametrize("more", [[], ["name='a=b'", "seed=3"], ["trainer={max_epochs: 3}", "~logger", "+extra=[1]"]])
def test_a_job_is_composed_as_hydra_composes_it(more: list[str], sweep: Sweep) -> None:
    overrides = ["model=cnn", "model.optimizer.lr=1e-3", *more]
    expected = OmegaConf.to_container(sweep.loader.load_sweep_config(sweep.config, overrides))
    assert [OmegaConf.to_container(sweep._load(overrides)) for _ in range(2)] == [expected] * 2


def test_a_job_is_handed_the_config_that_its_command_would_compose(sweep: Sweep) -> None:
    """Keys that are not in a job's identity have the command's values."""
    outside = ["fresh_processes=true", "mirror='a=b, c'"]
    sweep.constants |= {*outside}
    overrides = ["model=cnn", "model.optimizer.lr=1e-3"]
    (job,) = sweep.sweep_jobs.register(sweep.check([[*overrides, *outside]]))
    assert (job.launch.command[2:], sweep.compose(overrides).key) == ((f"resume='{job.directory}'", *outside), job.key)
    handed: Any = saved_config(job.directory, outside, job.launch.hydra)
    assert (OmegaConf.is_struct(handed), handed.hydra.run.dir, handed.run_id is None) == (True, str(job.directory), False)
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(job.directory / ".hydra")):
        expected: Any = hydra.compose("saved", outside)
    del handed.hydra
    assert OmegaConf.to_container(handed) == OmegaConf.to_container(expected)


def test_a_job_and_a_resumed_run_have_the_folder_and_the_variables_of_the_command(sweep: Sweep) -> None:
    (job,) = sweep.sweep_jobs.register(sweep.check([["seed=1"]]))
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(job.directory / ".hydra")):
        resumed = hydra.compose("saved", return_hydra_config=True).hydra.job
    assert (resumed.chdir, resumed.env_set) == (True, {"NCCL_DEBUG": "WARN"})
