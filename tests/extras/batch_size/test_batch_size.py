"""The largest batch that fits: how sizes are tried, and what the script prints."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import ROOT, python
from omegaconf import DictConfig
from refusals import validate

from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.extras.batch_size import batch_size
from lockstep.extras.batch_size.batch_size import CLOSE, FIRST, find_batch_size, largest_that_fits

HUNGRY = ("model=mlp", "model.net._target_=hungry.Hungry", "trainer.accelerator=cpu")


@pytest.mark.parametrize("limit", [0, 1, 2, 15, 16, 17, 31, 32, 100, 1000, 12345])
def test_the_largest_size_is_found_but_for_a_part_in_so_many(limit: int) -> None:
    tried: list[int] = []

    def batches(size: int) -> int:
        tried.append(size)
        return 3 * (size <= limit)

    result = largest_that_fits(batches)
    too_large = min((size for size in tried if size > limit), default=0)
    assert result <= limit < too_large <= result + max(1, result // CLOSE)
    assert len(tried) == len(set(tried)) <= 2 + abs(math.log2(max(1, limit) / FIRST)) + math.log2(CLOSE)


def test_it_ends_where_an_epoch_is_one_batch() -> None:
    assert largest_that_fits(lambda size: 700 // size) == 512


@pytest.fixture
def _no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "limit_memory", lambda *_: None)


@pytest.mark.usefixtures("_no_limit")
def test_sizes_are_trained_in_one_process_with_the_config_as_it_is(
    compose: Callable[..., DictConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("+model.net.room=37", "trainer.devices=2", "datamodule.global_batch_size=64", "trainer.enable_progress_bar=false")
    cfg = compose(*HUNGRY, *more, run_dir=tmp_path)
    before = cfg.copy()
    assert find_batch_size(cfg, Plan.from_config(cfg), None) == 36
    assert cfg == before
    assert "datamodule.batch_size=32: fits\n" in (out := capsys.readouterr().out)
    assert "datamodule.batch_size=64: does not fit\n" in out


@pytest.mark.usefixtures("_no_limit")
def test_another_error_ends_the_search(compose: Callable[..., DictConfig], tmp_path: Path) -> None:
    cfg = compose(*HUNGRY, "+model.net.room=x", run_dir=tmp_path)
    with pytest.raises(TypeError):
        find_batch_size(cfg, Plan.from_config(cfg), None)


@pytest.mark.usefixtures("_no_limit")
def test_no_room_for_a_sample_is_said(compose: Callable[..., DictConfig], tmp_path: Path) -> None:
    cfg = compose(*HUNGRY, "+model.net.room=0", run_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"^datamodule.batch_size=1: not even one sample fits; use a smaller model"):
        find_batch_size(cfg, Plan.from_config(cfg), None)


def test_a_cpu_needs_a_limit(compose: Callable[..., DictConfig]) -> None:
    cfg = compose(*HUNGRY)
    with pytest.raises(ConfigError, match=r"^--memory: a CPU has no limit of its own; give one in GiB"):
        find_batch_size(cfg, Plan.from_config(cfg), None)


def test_auto_is_no_batch_size(compose: Callable[..., DictConfig]) -> None:
    with pytest.raises(ConfigError, match=r"^datamodule.batch_size=auto: use a value of type int"):
        validate(compose("datamodule.batch_size=auto"))


@pytest.mark.slow
def test_the_script_prints_the_number(tmp_path: Path) -> None:
    """Where memory really runs out, under a limit on a CPU."""
    overrides = (*HUNGRY, "trainer.devices=2", "datamodule.batch_size=5")
    done = python(ROOT / "scripts" / "batch_size.py", *overrides, "--memory", "6.2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    size = done.stdout.splitlines()[-1].removeprefix("The largest batch that fits: datamodule.batch_size=")
    assert 4 <= int(size) <= 12, done.stdout
    assert list(tmp_path.iterdir()) == []
