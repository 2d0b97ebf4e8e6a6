"""Configs that differ by values alone are composed once, and are what Hydra composes."""

import re
from collections.abc import Iterator
from typing import Any

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from lockstep.config.overrides import flat
from lockstep.launchers.environment import register_resolvers
from lockstep.places import CONF
from lockstep.sweeps.composition import JobConfigs
from lockstep.sweeps.local import LocalExecutor
from lockstep.sweeps.settings import LocalSettings
from lockstep.sweeps.sweep import RefusedJob, Sweep

GIVEN = ["trainer=cpu", "debug=fast", "hydra.sweep.dir=there", "+hydra.job.env_set.NAME=value"]
JOBS = {
    "values": ["seed=3", "model.optimizer.lr=1e-3", "name='a b=c'", "datamodule.augment={crop: 4, flip: true}"],
    "others of the same groups": ["seed=4", "model.optimizer.betas=[0.8,0.99]", "run_dir=${name}/x", "test=null"],
    "added and taken away": [
        "+callbacks.own={_target_: a.B, c: [1, {d: 2}]}",
        "++trainer.new=1",
        "~callbacks.pictures",
        "seed=5",
    ],
    "groups": ["model=mlp", "model/optimizer=sgd", "model.optimizer.lr=0.3", "model.net.hidden=[8,8]", "+logger@second=csv"],
    "the same groups": [
        "model=mlp",
        "model/optimizer=sgd",
        "model.optimizer.lr=0.4",
        "model.net.hidden=[4]",
        "+logger@second=csv",
    ],
    "a mapping for a group": ["model={label_smoothing: 0.2}", "~profiler"],
    "a group that is taken away": ["~logger", "debug=fast"],
    "twice": ["seed=1", "seed=2", "model.net={width: 4}", "model.net.width=8"],
}
REFUSED = (
    ["model.nothing=1"],
    ["no/group=1"],
    ["+seed=1"],
    ["~nothing"],
    ["model=nothing"],
    ["seed=1,2"],
    ["seed=[1"],
    ["model@a=mlp"],
)


@pytest.fixture(scope="module")
def master() -> Iterator[tuple[DictConfig, Any]]:
    register_resolvers()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        engine: Any = GlobalHydra.instance().hydra
        config = engine.compose_config("train", [*GIVEN, "seed=0"], RunMode.MULTIRUN, with_log_configuration=False)
        HydraConfig.instance().set_config(config)
        yield config, engine.config_loader


def content(config: DictConfig) -> tuple[Any, ...]:
    node: Any = config
    flags = {key: OmegaConf.get_type(node, key) for key in node}, OmegaConf.is_struct(config), OmegaConf.is_readonly(config.hydra)
    return OmegaConf.to_container(config, enum_to_str=True), flags, OmegaConf.get_cache(config), list(config)


def test_jobs_are_key_for_key_as_hydra_composes_them(master: tuple[DictConfig, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config, loader = master
    own = flat(OmegaConf.to_container(config)).items()  # pyright: ignore[reportArgumentType]
    keys = [key for key, value in own if not key.startswith("hydra.") and not isinstance(value, dict)]
    everything = [f"{key}=[{number}]" for number, key in enumerate(keys)]
    assert len(everything) > 100
    jobs = [*JOBS.values(), everything, JOBS["values"]]
    expected = [content(loader.load_sweep_config(config, job)) for job in jobs]
    composed, load = list[list[str]](), loader.load_sweep_config
    monkeypatch.setattr(
        loader, "load_sweep_config", lambda master, overrides: composed.append(overrides) or load(master, overrides)
    )
    configs = JobConfigs(config, loader)
    assert [content(configs.compose(job)) for job in jobs] == expected
    groups = ["model=mlp", "model/optimizer=sgd", "+logger@second=csv"]
    assert composed == [[], groups, ["~profiler"], ["~logger", "debug=fast"]]


def test_the_same_point_is_one_job(
    master: tuple[DictConfig, Any], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """However it is spelled; the sweeper hears of it as often as it has asked."""
    settings = LocalSettings(dry_run=True)
    sweep = Sweep(*master, settings, LocalExecutor.from_settings(settings))
    rates = [[f"model.optimizer.lr={rate}"] for rate in ("1e-3", "3e-3", "0.001", "1E-3")]
    returned = sweep.launch(rates)
    assert [one.overrides for one in returned] == [[*rates[0]], [*rates[1]], [*rates[0]], [*rates[0]]]
    assert capsys.readouterr().out.count("1 process(es)") == 2
    assert caplog.messages == ["2 of 4 jobs are those of other ones, spelled again: each is run once"]


def test_a_job_that_is_too_large_for_its_cores_is_refused_before_the_sweep_begins(
    master: tuple[DictConfig, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.sweeps.local.cores", lambda: {0, 1})
    monkeypatch.setattr("lockstep.config.plan.visible_cores", lambda: 2)
    settings = LocalSettings(dry_run=True, jobs=2)
    sweep = Sweep(*master, settings, LocalExecutor.from_settings(settings))
    sweep.launch([["trainer.devices=8"], ["datamodule.num_workers=8"]])
    few = "each of the launcher's jobs has 1 core(s); accepted is up to 8, or more with max_processes_per_core"
    for override in ("trainer.devices=9", "datamodule.num_workers=9"):
        with pytest.raises(RefusedJob, match=re.escape(f"job 0 ({override}): {override}: {few}")):
            sweep.launch([[override]])


@pytest.mark.parametrize("job", REFUSED, ids=str)
def test_what_hydra_refuses_is_refused_in_its_words(job: list[str], master: tuple[DictConfig, Any]) -> None:
    config, loader = master
    with pytest.raises(HydraException) as expected:
        loader.load_sweep_config(config, job)
    with pytest.raises(type(expected.value)) as refused:
        JobConfigs(config, loader).compose(job)
    assert str(refused.value) == str(expected.value)
