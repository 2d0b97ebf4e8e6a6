"""What a job asks Ray for, and whether nodes have it. Nothing of Ray's is started."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import refused
from omegaconf import OmegaConf

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.extras.ray_cluster.launcher import RayExecutor, Share
from lockstep.runs.composition import compose

NODES = [{"CPU": 8.0, "GPU": 4.0}, {"CPU": 8.0}, {"CPU": 2.0, "GPU": 4.0}]


@pytest.mark.parametrize(
    ("overrides", "cpus", "words", "lacks"),
    [
        (["trainer.devices=1"], 1, "1 node with CPU=1 GPU=1", None),
        (["trainer.devices=4"], 2, "1 node with CPU=8 GPU=4", None),
        (["trainer.devices=4"], 3, "1 node with CPU=12 GPU=4", "CPU"),
        (["trainer.devices=8"], 1, "1 node with CPU=8 GPU=8", "GPU"),
        (["trainer=cpu", "trainer.devices=4"], 0.5, "1 node with CPU=2", None),
        (["trainer=cpu", "trainer.num_nodes=3", "datamodule.batch_size=64"], 2, "3 nodes with CPU=2", None),
        (["trainer.devices=1", "trainer.num_nodes=3", "datamodule.batch_size=64"], 1, "3 nodes with CPU=1 GPU=1", "nodes"),
    ],
)
def test_a_job_asks_for_what_its_processes_need(overrides: list[str], cpus: float, words: str, lacks: str | None) -> None:
    share = Share.of(Plan.from_config(compose(*overrides), node_gpus=8), cpus)
    assert share.words() == words
    assert share.lacks(NODES) == lacks


def test_what_no_node_has_is_refused_by_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)  # as if Ray were installed
    config = OmegaConf.create({"hydra": {"launcher": {"_target_": "x", "address": "auto"}}})
    executor: Any = RayExecutor(config)
    executor.nodes = lambda: NODES
    plan = Plan.from_config(compose("trainer.devices=8"), node_gpus=8)
    job: Any = SimpleNamespace(start=SimpleNamespace(resources=executor.resources(config, plan)))
    with pytest.raises(ConfigError, match=r"^trainer.devices=8: a job takes 1 node with CPU=8 GPU=8; use .*CPU=8 GPU=4"):
        executor.check([job])


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_launcher_is_refused(tmp_path: Path) -> None:
    line = refused(tmp_path, "hydra.mode=MULTIRUN", "hydra/launcher=ray", "seed=0,1")
    assert line == "hydra/launcher=ray: the library `ray` is not installed: pip install 'lockstep[ray]'"
