"""`datamodule.batch_size=auto` over real processes that run out of real memory."""

import json
from pathlib import Path

import pytest
from commands import ROOT, python, train
from hungry import GIB_PER_SAMPLE

pytestmark = pytest.mark.slow
OPTIONS = ("debug=fast", "model=mlp", "model.net._target_=hungry.Hungry", "trainer.devices=2", "callbacks=null")


def test_the_largest_batch_is_found_trained_and_recorded(tmp_path: Path) -> None:
    limit = 3.5 * GIB_PER_SAMPLE  # three samples, and the rest of a step
    auto = ("datamodule.batch_size=auto", f"memory_per_process={limit}", "hydra.run.dir=run")
    done = train(*OPTIONS, *auto, "trainer.accumulate_grad_batches=160", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("datamodule.batch_size=")] == [
        "datamodule.batch_size=16: more than an epoch has",  # 1,293 samples, fewer than 16 for each of 2 * 160
        "datamodule.batch_size=4: out of memory",
        *(f"datamodule.batch_size={size}: fits" for size in (2, 3)),
        f"datamodule.batch_size=auto: 3 per process; 4 do not fit; of {limit:g} GiB of memory each",
    ]
    record = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (record["batch_size"], record["global_batch_size"], record["steps"]) == (3, 960, 1)
    assert len(record["memory_gib_of_ranks"]) == 2
    assert min(record["memory_gib_of_ranks"]) > 0
    identity = json.loads((tmp_path / "run" / "run.json").read_text())
    assert "datamodule.batch_size=3" in identity["overrides"]
    assert not any("auto" in override for override in identity["overrides"])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_each_job_of_a_sweep_searches_for_itself(tmp_path: Path) -> None:
    sweep = (ROOT / "train.py", "-m", "trainer.accelerator=cpu", "trainer.devices=1,2", "hydra.launcher.dry_run=true")
    done = python(*sweep, "datamodule.batch_size=auto", "memory_per_process=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("datamodule.batch_size=auto") == 2
    refused = python(*sweep, "datamodule.batch_size=auto", cwd=tmp_path)
    assert refused.returncode == 2
    assert "datamodule.batch_size=auto: a CPU has no memory of its own to fill" in refused.stderr


def test_what_does_not_fit_of_a_global_batch_is_accumulated(tmp_path: Path) -> None:
    """Of 24 samples each of two processes has 12, in parts of 3, the largest of its divisors that fits."""
    limit = ("datamodule.batch_size=auto", "datamodule.global_batch_size=24", f"memory_per_process={3.5 * GIB_PER_SAMPLE}")
    done = train(*OPTIONS, *limit, "hydra.run.dir=run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "=auto: 3 per process, 4 accumulated; 4 do not fit; of 1.75 GiB of memory each" in done.stdout
    record = json.loads((tmp_path / "run" / "metrics.json").read_text())
    sizes = [record[name] for name in ("batch_size", "accumulate_grad_batches", "global_batch_size", "samples_trained", "steps")]
    assert sizes == [3, 4, 24, 24, 1]
