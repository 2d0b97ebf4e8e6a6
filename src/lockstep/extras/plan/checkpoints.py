"""The checkpoints of a run that exists, for branches to begin from."""

from pathlib import Path

from lockstep.checkpointing import read_checkpoint
from lockstep.errors import config_error

_MOST = 2


def checkpoints_in(run_dir: Path, training: float) -> dict[int, Path]:
    """By the samples that they were trained on, the first and the last of those from within its training of that many samples.
    Raises ConfigError where there is none."""
    files: dict[int, Path] = {}
    for path in sorted(run_dir.absolute().glob("checkpoints/*.ckpt")):
        samples = read_checkpoint("plan.run", path, whole=()).get("samples_trained", 0)
        if 0 < samples < training:
            files.setdefault(samples, path)
    if not files:
        words = "has no checkpoint from within its training, and branches need a part of it before them"
        raise config_error("plan.run", run_dir, f"{words}; accepted is a run with guards.checkpoint.every_n_steps")
    chosen = sorted(files)
    return {samples: files[samples] for samples in [chosen[0], chosen[-1]][:_MOST]}
