"""status.json says where every rank is, while the run is running."""

import json
import os
import platform
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from omegaconf import OmegaConf
from ranks import in_ranks

from lockstep.callbacks.ranks import Ranks
from lockstep.errors import ConfigError
from lockstep.runs.record import write_status


def note(rank: int, world_size: int, run: Path, stage: str = "fit", **config: Any) -> int:
    trainer: Any = SimpleNamespace(world_size=world_size, is_global_zero=rank == 0, global_rank=rank, default_root_dir=str(run))
    Ranks(OmegaConf.create(config)).setup(trainer, None, stage)
    return os.getpid()


def refusal(rank: int, world_size: int, run: Path, configs: list[dict[str, Any]]) -> str | None:
    try:
        note(rank, world_size, run, **configs[rank])
    except ConfigError as error:
        return str(error)
    return None


def status(run: Path) -> dict[str, Any]:
    return json.loads((run / "status.json").read_text())


def test_every_rank_s_host_and_process_are_recorded_while_it_runs(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_status(run, "running", is_first=True)
    pids = in_ranks(2, partial(note, run=run), tmp_path)
    assert status(run)["ranks"] == [{"rank": k, "host": platform.node(), "pid": pid} for k, pid in enumerate(pids)]
    assert status(run)["status"] == "running"
    write_status(run, "failed", "rank 1 was killed by SIGKILL", 1)
    note(0, 1, run)  # too late
    assert "ranks" not in status(run)


def test_ranks_of_several_configs_are_refused_in_each_of_them_before_they_train(tmp_path: Path) -> None:
    here, there = ({"datamodule": {"data_dir": f"/{host}/data", "num_workers": host}} for host in (1, 2))
    one = {"model": {"lr": 0.1}, "seed": 0}
    other = {"model": {"lr": 0.5}, "seed": 0}
    assert in_ranks(2, partial(refusal, run=tmp_path, configs=[one | here, one | there]), tmp_path) == [None, None]
    line = "model.lr=0.1: is 0.5 in rank 1; start all ranks with the same config"
    assert in_ranks(2, partial(refusal, run=tmp_path, configs=[one, other]), tmp_path) == [line, line]
