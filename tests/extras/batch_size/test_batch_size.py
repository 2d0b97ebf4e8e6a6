"""The search for a batch size: how it goes about it, what it leaves in the config, and where it is refused."""

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydra
import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.extras.batch_size import batch_size
from lockstep.extras.batch_size.batch_size import CLOSE, FULL, find_batch_size, largest_part_that_fits, largest_that_fits
from lockstep.extras.batch_size.events import FindBatchSize
from lockstep.launchers.command_line import CommandLine
from lockstep.launchers.environment import Rank, register_resolvers
from lockstep.launchers.outcome import Outcome
from lockstep.runs.composition import CONF, compose
from lockstep.runs.validation import validated

AUTO = ("trainer.accelerator=cpu", "trainer.devices=2", "datamodule.batch_size=auto")


@pytest.mark.parametrize("limit", [0, 1, 2, 15, 16, 17, 31, 32, 100, 1000, 12345])
def test_the_largest_size_is_found_but_for_a_part_in_so_many(limit: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> float | None:
        tried.append(size)
        return math.inf if size <= limit else None

    result, too_large = largest_that_fits(fits)
    assert result <= limit < (too_large or 0) <= result + max(1, result // CLOSE)
    assert len(tried) == len(set(tried)) <= 2 + abs(math.log2(max(1, limit) / batch_size.FIRST)) + math.log2(CLOSE)


@pytest.mark.parametrize(("samples", "sizes"), [(16, [16]), (20, [16, 20]), (700, [16, 32, 64, 128, 256, 512, 700])])
def test_it_ends_where_there_are_no_more_samples(samples: int, sizes: list[int]) -> None:
    tried: list[int] = []
    assert largest_that_fits(lambda size: tried.append(size) or samples) == (samples, None)
    assert tried == sizes


@pytest.mark.parametrize("limit", [0, 1, 2, 5, 7, 23, 24, 59, 60, 100])
def test_the_largest_divisor_of_a_share_is_found(limit: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> float | None:
        tried.append(size)
        return math.inf if size <= limit else None

    divisors = [size for size in range(1, 61) if 60 % size == 0]
    largest = max((size for size in divisors if size <= limit), default=0)
    assert largest_part_that_fits(fits, 60) == (largest, min((size for size in divisors if size > limit), default=None))
    assert len(tried) == len(set(tried)) <= 5
    with pytest.raises(ConfigError, match=r"^datamodule.batch_size=auto: an epoch has no 60 samples for each process; accepted"):
        largest_part_that_fits(lambda _: 50, 60)


def test_it_begins_at_what_an_epoch_has() -> None:
    tried: list[int] = []
    assert largest_that_fits(lambda size: tried.append(size) or 11) == (11, None)
    assert tried == [16, 11]
    with pytest.raises(ConfigError, match=r"^datamodule.batch_size=auto: an epoch has no sample for each process and batch"):
        largest_that_fits(lambda _: 0)


def hydra_config(*overrides: str) -> DictConfig:
    """With Hydra's own part, as a callback of Hydra's is given it."""
    register_resolvers()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = hydra.compose("train", overrides=["hydra.run.dir=here", *overrides], return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    return config


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Stands in for the ranks: more than 24 samples do not fit, unless `outcome` says how all tries end."""
    seen: dict[str, Any] = {"sizes": [], "outcome": None}

    def supervised(command: list[str], world_size: int, log: Path, **options: Any) -> Outcome:
        cfg: Any = OmegaConf.load(command[3])
        size = cfg.datamodule.batch_size
        seen["sizes"].append(size)
        seen.update(cfg=cfg, world_size=world_size, options=options, folder=log.parent)
        return seen["outcome"] or Outcome(code=0 if size <= 24 else 1, reason=f"rank 1: {FULL}" if size > 24 else None)

    monkeypatch.setattr(batch_size, "supervise", supervised)
    yield seen
    HydraConfig.instance().cfg = None


def test_what_is_found_stands_where_a_number_would(room: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    more = ("memory_per_process=2", "trainer.max_epochs=3")
    config = hydra_config(*AUTO, *more)
    find_batch_size(config)
    assert (room["sizes"], room["world_size"]) == ([16, 32, 24, 28, 26, 25], 2)
    assert config.datamodule.batch_size == 24
    assert CommandLine.of(config).overrides == (*AUTO[:2], "datamodule.batch_size=24", *more, "halve_batch_size=true")
    assert validated(config)[1].global_batch_size == 48
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "datamodule.batch_size=32: out of memory"
    assert said[-1] == "datamodule.batch_size=auto: 24 per process; 25 do not fit; of 2 GiB of memory each"
    assert not room["folder"].exists()
    FindBatchSize().fill_in(config)  # nothing is left to be found
    assert len(room["sizes"]) == 6


def test_gradients_are_accumulated_for_the_rest_of_a_global_batch(
    room: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 120 samples each process has 60, of which 24 are the most that fit; batches that are counted become as many more."""
    counted = ("trainer.val_check_interval=3", "trainer.limit_train_batches=4", "trainer.limit_val_batches=0.5")
    config = hydra_config(*AUTO, "memory_per_process=2", "datamodule.global_batch_size=120", *counted)
    find_batch_size(config)
    assert room["sizes"] == [60, 6, 15, 30, 20]
    assert (room["cfg"].datamodule.global_batch_size, room["cfg"].trainer.accumulate_grad_batches) == (None, 2)
    plan = validated(config)[1]
    assert (plan.batch_size, plan.accumulate_grad_batches, plan.global_batch_size) == (20, 3, 120)
    trainer = config.trainer
    assert (trainer.val_check_interval, trainer.limit_train_batches, trainer.limit_val_batches) == (9, 12, 0.5)
    assert "trainer.limit_train_batches=12" in CommandLine.of(config).overrides
    assert capsys.readouterr().out.splitlines()[-1] == (
        "datamodule.batch_size=auto: 20 per process, 3 accumulated; 30 do not fit; of 2 GiB of memory each"
    )


def test_a_try_is_the_run_in_short_and_leaves_nothing_elsewhere(room: dict[str, Any]) -> None:
    more = ("callbacks=noise_scale", "logger=mlflow", "fork=null", "trainer.limit_val_batches=0.1", "trainer.max_epochs=5")
    config = hydra_config(*AUTO, "memory_per_process=2", "trainer.accumulate_grad_batches=2", *more)
    find_batch_size(config)
    cfg = room["cfg"]
    assert cfg.run_dir == str(room["folder"])
    assert [*cfg.logger] == ["csv"]
    assert cfg.logger.csv.save_dir == cfg.run_dir
    assert (cfg.trainer.max_steps, cfg.trainer.max_epochs, cfg.trainer.limit_train_batches) == (3, -1, 6)
    assert (cfg.trainer.num_sanity_val_steps, cfg.trainer.limit_val_batches, cfg.test) == (1, 1, False)
    assert cfg.guards.checkpoint is cfg.guards.nonfinite is cfg.callbacks.best_checkpoint is None
    assert cfg.callbacks.noise_scale._target_ == "lockstep.extras.noise_scale.noise_scale.NoiseScale"  # it takes memory too
    assert room["options"]["quiet"]
    assert config.trainer.max_epochs == 5


def test_a_try_validates_whatever_the_interval(room: dict[str, Any]) -> None:
    interval = ("trainer.val_check_interval=50", "trainer.check_val_every_n_epoch=null")
    find_batch_size(hydra_config(*AUTO, "memory_per_process=2", *interval))
    cfg = room["cfg"]
    assert (cfg.trainer.val_check_interval, cfg.trainer.check_val_every_n_epoch) == (1.0, 1)


@pytest.mark.parametrize(
    ("outcome", "error", "said"),
    [
        (Outcome(code=1, reason=f"rank 0: {FULL}"), ConfigError, "datamodule.batch_size=auto: not even one sample"),
        (Outcome(code=1, reason="rank 0 ended", is_silent=True), ConfigError, "datamodule.batch_size=auto: not even one sample"),
        (Outcome(code=2, reason="datamodule=x: no such data"), ConfigError, "datamodule=x: no such data"),
        (
            Outcome(code=1, reason="rank 1: KeyError: 'x'"),
            SystemExit,
            "a try failed, not for want of memory: rank 1: KeyError",
        ),
        (Outcome(code=75, reason="interrupted by SIGINT"), SystemExit, "=auto: the search was interrupted by SIGINT"),
    ],
)
def test_another_failure_is_no_want_of_memory(
    outcome: Outcome, error: Any, said: str, room: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    room["outcome"] = outcome
    config = hydra_config(*AUTO, "memory_per_process=2")
    with pytest.raises(error) as left:
        find_batch_size(config)
    assert said in str(left.value) + capsys.readouterr().err
    if error is SystemExit:
        assert (left.value.code, len(room["sizes"])) == (outcome.code, 1)
    assert config.datamodule.batch_size == "auto"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            (),
            "datamodule.batch_size=auto: a CPU has no memory of its own to fill; accepted is a number, or memory_",
        ),
        (("memory_per_process=0",), "memory_per_process=0: accepted is a number above 0, or null"),
        (
            ("memory_per_process=1", "datamodule.global_batch_size=64", "trainer.accumulate_grad_batches=2"),
            "trainer.accumulate_grad_batches=2: follows from datamodule.batch_size=auto where datamodule.global_batch_size is",
        ),
        (
            ("memory_per_process=1", "datamodule.global_batch_size=63"),
            "datamodule.global_batch_size=63: does not divide by world size * trainer.accumulate_grad_batches = 2; accepted",
        ),
        (("datamodule.batch_size=most",), "datamodule.batch_size=most: accepted is an integer of at least 1"),
    ],
)
def test_what_can_not_be_searched_for_is_refused(overrides: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validated(compose(*AUTO, *overrides), unfilled=True)
    assert str(refused.value).startswith(line)


def test_other_programs_than_train_py_take_a_number() -> None:
    with pytest.raises(ConfigError, match=r"^datamodule.batch_size=auto: accepted is an integer of at least 1"):
        validated(compose(*AUTO, "memory_per_process=2"))


def test_ranks_of_another_launcher_are_not_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "this_rank", lambda: Rank("torchrun", 0, 0, 2, 1))
    with pytest.raises(ConfigError, match=r"^datamodule.batch_size=auto: .* torchrun does not start; accepted"):
        validated(compose(*AUTO, "memory_per_process=2"), unfilled=True)


@pytest.mark.parametrize(("limit", "part"), [(None, 0.9), (20.0, 0.25), (100.0, 1.0)])
def test_a_rank_on_a_gpu_may_fill_a_part_of_its_own_one(
    limit: float | None, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(batch_size, "this_rank", lambda: Rank("parent", 1, 1, 2, 1))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 * 2**30))
    seen = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: seen.append(given))
    for ids, device in ((None, 1), ((2, 3), 3)):
        plan = Plan("gpu", 2, ids, 1, 2, 16, 32, 1, None)
        batch_size._limit_memory(plan, limit)
        assert seen.pop() == (pytest.approx(part), device)
