"""A run that is out of memory while it trains goes on with half the samples at once: the result is that of one that was not."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from capabilities import requires
from commands import ROOT, python, train
from omegaconf import OmegaConf

from lockstep.checkpointing import read_checkpoint
from lockstep.config.overrides import override_key, with_values
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.extras.batch_size import halving
from lockstep.extras.batch_size.events import FindBatchSize
from lockstep.launchers.environment import Rank
from lockstep.launchers.outcome import Outcome
from lockstep.runs.composition import compose
from lockstep.runs.events import command_to_begin
from lockstep.runs.identity import Identity
from lockstep.runs.resume import command_to_continue
from lockstep.runs.validation import validated

HALVES = ("trainer.accelerator=cpu", "datamodule.global_batch_size=48", "halve_batch_size=true")
FULL = Outcome(code=1, reason="rank 1: OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.", rank=1)


def remedy(outcome: Outcome, *overrides: str, subscriber: FindBatchSize | None = None) -> Any:
    cfg = compose(*HALVES, *overrides)
    return (subscriber or FindBatchSize()).remedy(cfg, Plan.from_config(cfg), outcome)


def test_half_the_samples_at_once_and_twice_as_many_batches() -> None:
    found = remedy(FULL, "trainer.limit_train_batches=5")
    assert found.why == (
        "rank 1 is out of memory with 48 samples at once: the run goes on from its last checkpoint with 24, and 2 such batches a "
        "step"
    )
    more = {"trainer.limit_train_batches": 10, "events.batch_size.halved": [48]}
    assert found.values == {"datamodule.batch_size": 24, "trainer.accumulate_grad_batches": 2} | more


@pytest.mark.parametrize(("size", "smaller", "parts"), [(48, 24, 2), (45, 15, 3), (7, 1, 7)])
def test_an_odd_batch_is_divided_by_what_divides_it(size: int, smaller: int, parts: int) -> None:
    values = remedy(FULL, f"datamodule.global_batch_size={size}").values
    assert (values["datamodule.batch_size"], values["trainer.accumulate_grad_batches"]) == (smaller, parts)


@pytest.mark.parametrize(
    ("reason", "is_full"),
    [
        ("rank 0: RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes", True),
        ("rank 0: MemoryError: std::bad_alloc", True),
        ("rank 0: RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if", True),
        ("rank 0: RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("rank 0: RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", True),
        ("rank 0: ArithmeticError: planted fault", False),
        ("rank 0: RuntimeError: DataLoader worker is out of shared memory", False),
        (None, False),
    ],
)
def test_what_is_want_of_memory(reason: str | None, is_full: bool) -> None:
    assert (remedy(Outcome(code=1, reason=reason)) is not None) == is_full


def test_a_process_that_the_kernel_has_killed_for_want_of_memory_has_said_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = [3, 3, 4]
    monkeypatch.setattr(halving, "kernel_kills", lambda: kills.pop(0))
    subscriber, killed = FindBatchSize(), Outcome(code=1, reason="rank 0 was killed by SIGKILL", rank=0, is_silent=True)
    subscriber.begin(compose(*HALVES), tmp_path)
    assert remedy(killed, subscriber=subscriber) is None  # by somebody else
    assert remedy(killed, subscriber=subscriber) is not None


def refusal(cfg: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        validated(cfg)
    return str(refused.value)


def test_it_is_halved_where_that_was_asked_for_and_can_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert remedy(FULL, "halve_batch_size=null") is None
    assert remedy(FULL, "datamodule.global_batch_size=1") is None
    with caplog.at_level(logging.WARNING):
        assert remedy(FULL, "trainer.devices=2", "trainer.strategy.static_graph=true") is None
    assert "halve_batch_size=true: trainer.strategy.static_graph=true: DDP then" in caplog.text
    cfg = compose("halve_batch_size=true")
    del cfg.datamodule.standardize  # so it is no DataModule's
    assert refusal(cfg).startswith("halve_batch_size=true: needs data that counts its batches in samples")
    assert refusal(compose("halve_batch_size=2")).startswith("halve_batch_size=2: accepted is true, false, or null")
    monkeypatch.setattr("lockstep.extras.batch_size.halving.this_rank", lambda: Rank("torchrun", 0, 0, 1, 1))
    assert refusal(compose("halve_batch_size=true")).startswith("halve_batch_size=true: starts the ranks again with other")


BEGUN = ("trainer.limit_train_batches=6", "trainer.limit_val_batches=0.5", "datamodule.global_batch_size=96")


@pytest.mark.parametrize(
    ("size", "more"),
    [
        ("datamodule.batch_size=48", ("trainer.accumulate_grad_batches=2", "halve_batch_size=true")),
        ("datamodule.batch_size=auto", ()),
    ],
)
def test_the_command_that_has_begun_it_continues_it_with_what_it_has_become(
    size: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    """A sweep goes on so with a job; 6 batches of 12 would be a quarter of its epoch."""
    began = [*BEGUN, size, *more]
    smaller = {"datamodule.batch_size": 12, "trainer.accumulate_grad_batches": 8, "trainer.limit_train_batches": 24}
    smaller["trainer.limit_train_batches"] *= 1 if more else 2
    halved = {"events.batch_size.halved": [48, 24]} if more else {}
    overrides = with_values(began, smaller | halved)
    Identity("id", [], overrides, 96).write(tmp_path)
    own = {f"{key}={value}" for key, value in smaller.items()}
    continued = command_to_continue([*began, f"resume={tmp_path}"])
    assert continued is not None
    assert {item for item in continued if override_key(item) in smaller} == own
    changed = command_to_continue([*began, "trainer.limit_train_batches=7", f"resume={tmp_path}"])
    assert "trainer.limit_train_batches=7" in (changed or ())


def test_what_hydra_has_saved_of_the_run_says_what_it_has_become(tmp_path: Path) -> None:
    overrides, saved = [*HALVES, "trainer.limit_train_batches=5"], tmp_path / ".hydra"
    saved.mkdir()
    cfg = compose(*overrides)
    OmegaConf.save(cfg, saved / "config.yaml")
    OmegaConf.save(overrides, saved / "overrides.yaml")
    cfg.run_dir = str(tmp_path)
    values = FindBatchSize().remedy(cfg, Plan.from_config(cfg), FULL).values
    assert OmegaConf.load(saved / "overrides.yaml") == with_values(overrides, values)
    changed: Any = OmegaConf.load(saved / "config.yaml")
    assert {key: OmegaConf.select(changed, key) for key in values} == values
    assert changed == compose(*OmegaConf.load(saved / "overrides.yaml"))


@requires("fork")
def test_a_fork_of_a_run_that_was_out_of_memory_has_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = ["datamodule.batch_size=24", "events.batch_size.halved=[48]"]
    Identity("id", [], began, 48).write(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    torch.save({"state_dict": {}, "global_step": 8}, tmp_path / "checkpoints" / "last.ckpt")
    forked = command_to_begin([f"fork={tmp_path}"])
    assert "datamodule.batch_size=24" in forked
    assert not [item for item in forked if override_key(item) == "events.batch_size.halved"]
    monkeypatch.setattr("lockstep.extras.batch_size.events.this_rank", lambda: Rank("parent", 0, 0, 1, 1))
    assert FindBatchSize().arguments(began, {}, None) == began  # of a run that has been


OPTIONS = ("model=mlp", "trainer.precision=64-true", "trainer.accelerator=cpu", "datamodule.global_batch_size=96")
OPTIONS += ("guards.checkpoint.every_n_steps=4", "trainer.max_epochs=2", "trainer.limit_train_batches=10", "logger=csv")
OPTIONS += ("model/lr_scheduler=cosine", "datamodule.augment={crop: 1}", "++callbacks.pictures=null")


def weights(run: Path) -> dict[str, torch.Tensor]:
    return read_checkpoint("a run", run / "checkpoints" / "last.ckpt")["state_dict"]


@pytest.mark.slow
def test_the_result_is_that_of_a_run_with_enough_memory(tmp_path: Path) -> None:
    """On one process, halved twice, and on the second of two: each loses memory within the second epoch, two steps after a
    checkpoint."""
    assert train(*OPTIONS, "hydra.run.dir=whole", cwd=tmp_path).returncode == 0
    whole = json.loads((tmp_path / "whole" / "metrics.json").read_text())
    for devices, sizes in ((1, [96, 48]), (2, [48])):
        run = tmp_path / str(devices)
        lack = f"+callbacks.lack={{_target_:planted_memory.TooLittleMemory,enough_for:24,rank:{devices - 1},step:14}}"
        done = train(*OPTIONS, "halve_batch_size=true", lack, f"trainer.devices={devices}", f"hydra.run.dir={run}", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        said = [line for line in (run / "train.log").read_text().splitlines() if " is out of memory with " in line]
        assert len(said) == len(sizes)
        record = json.loads((run / "metrics.json").read_text())
        parts = 96 // devices // 24
        assert record["batch_sizes_out_of_memory"] == sizes
        assert (record["batch_size"], record["accumulate_grad_batches"], record["global_batch_size"]) == (24, parts, 96)
        assert [record[name] for name in ("steps", "epochs", "lr")] == [whole[name] for name in ("steps", "epochs", "lr")]
        assert record["metrics"]["val/loss"] == pytest.approx(whole["metrics"]["val/loss"], rel=1e-9)
        for name, expected in weights(tmp_path / "whole").items():
            torch.testing.assert_close(weights(run)[name], expected, rtol=1e-9, atol=1e-12)
        overrides = json.loads((run / "run.json").read_text())["overrides"]
        assert {"datamodule.batch_size=24", f"trainer.accumulate_grad_batches={parts}"} <= {*overrides}
        assert {*overrides} >= {*OmegaConf.load(run / ".hydra" / "overrides.yaml")}
        saved: Any = OmegaConf.load(run / ".hydra" / "config.yaml")
        assert (saved.datamodule.batch_size, saved.trainer.accumulate_grad_batches) == (24, parts)


@pytest.mark.slow
def test_a_job_that_is_out_of_memory_is_a_row_that_says_so(tmp_path: Path) -> None:
    """With a batch that is fixed, and nothing asked for: the sweep goes on."""
    lack = "+callbacks.lack={_target_:planted_memory.TooLittleMemory,enough_for:64,rank:0,step:1}"
    sweep = ("-m", "datamodule.batch_size=32,128", "hydra.sweep.dir=sweep", "trainer.accelerator=cpu", "model=mlp", "debug=fast")
    done = python(ROOT / "train.py", *sweep, "trainer.limit_train_batches=3", "trainer.max_steps=-1", lack, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = (tmp_path / "sweep" / "results.md").read_text()
    assert "finished" in rows
    assert "OutOfMemoryError: CUDA out of memory" in rows
