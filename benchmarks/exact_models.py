"""Users' models under trainer.exact: what the parity check says of each, and whether that is so.

    python benchmarks/exact_models.py [--only NAME ...] > benchmarks/exact_models.md

The models of exact_same.py keep their bits, those of exact_state.py and exact_process.py do not; some of these are refused in one
line, before a step. Each is trained on one process
and on two, without the check, and the weights and buffers of all processes are compared: that is the truth. The check's verdict
is to agree with it, and to name the place that the model's file has for it. Exit code 1 where one does not.
"""

import argparse
import copy
import functools
import hashlib
import inspect
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import exact_process
import exact_same
import exact_state
from hardware import processor
from lightning import LightningModule
from omegaconf import DictConfig, open_dict

from lockstep.build import build
from lockstep.config.plan import Plan
from lockstep.errors import ConfigError
from lockstep.extras.parity.processes import Processes
from lockstep.extras.parity.verdict import parity
from lockstep.runs.composition import compose

WORKERS, STEPS = 4, 4
RUN = (
    *("model=mlp", "model/lr_scheduler=constant", "datamodule=synthetic_images", "datamodule.shape=[1,4,4]"),
    *("datamodule.num_classes=3", "datamodule.length=48", "datamodule.val_length=8", "datamodule.test_length=8"),
    *("datamodule.batch_size=3", "datamodule.augment=null", "trainer=cpu", f"trainer.exact={WORKERS}", "test=false"),
    *("trainer.limit_val_batches=1", "optimized_metric=train/loss", "optimized_mode=min"),
)
QUIET = ("~callbacks", "logger=csv", "trainer.enable_progress_bar=false", "guards.watchdog=null", "guards.checkpoint=null")


def _models(module: Any) -> dict[str, type[LightningModule]]:
    own = [one for _, one in inspect.getmembers(module, inspect.isclass) if one.__module__ == module.__name__]
    return {one.__name__: one for one in own if issubclass(one, exact_same.Model) and one is not exact_same.Model}


SAME, OTHER = _models(exact_same), _models(exact_state) | _models(exact_process)
MODELS = SAME | OTHER


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[*MODELS], metavar="NAME")
    parser.add_argument("--hashes", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.hashes is not None:
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        (given.hashes / f"{size}.{rank}.json").write_text(json.dumps(train(given.only, size, given.hashes)))
        return
    print(f"`python benchmarks/exact_models.py`; torch {version('torch')}, lightning {version('lightning')}, Python")
    print(f"{platform.python_version()}, {processor()}.\n")
    print(
        f"{WORKERS} virtual workers on one process and on two, {STEPS} steps. The bits: of weights and buffers, trained without"
    )
    print("the check. Right: the verdict is that, and the place and what it reads are those planted.\n")
    print("| model | the bits | the verdict | right | what it names |\n|---|---|---|---|---|")
    with TemporaryDirectory() as folder:
        truth = hashes(given.only, Path(folder))
        with Processes(3, Path(folder), fresh=True) as processes:
            rows = [row(name, truth[name], processes) for name in given.only]
    print(f"\n{sum(rows)} of {len(rows)} right.")
    sys.exit(not all(rows))


def hashes(names: Sequence[str], folder: Path) -> dict[str, set[str]]:
    """Trains on one process, and on two started by torchrun: the different hashes of each model."""
    arguments = [__file__, "--only", *names, "--hashes", str(folder)]
    for start in ([], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run([sys.executable, *start, *arguments], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
    each = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    return {name: {one[name] for one in each} for name in names}


def train(names: Sequence[str], size: int, folder: Path) -> dict[str, str]:
    """Returns a hash of the weights and buffers that each model ends with, in this process; or the line that refuses it."""
    ends = {}
    for name in names:
        cfg = composed(name, size, [*QUIET, f"trainer.max_steps={STEPS}"])
        cfg.run_dir = f"{folder}/{size}/{name}"
        datamodule, model, trainer = build(cfg, Plan.from_config(cfg))
        try:
            trainer.fit(model, datamodule)
        except ConfigError as error:
            ends[name] = str(error)
            continue
        digest = hashlib.sha256()
        for tensor in model.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        ends[name] = digest.hexdigest()
    return ends


def composed(name: str, size: int, more: list[str], config_name: str = "train") -> DictConfig:
    cfg = copy.deepcopy(_composed(config_name, *RUN, f"trainer.devices={size}", *more))
    with open_dict(cfg):
        cfg.model = {"_target_": f"{MODELS[name].__module__}.{name}"}
    return cfg


@functools.cache
def _composed(config_name: str, *overrides: str) -> DictConfig:
    """Once for all models, which are put into it: it takes as long as their training."""
    return compose(*overrides, config_name=config_name)


def row(name: str, truth: set[str], processes: Processes) -> bool:
    if hasattr(MODELS[name], "refused"):
        right = is_refused(name, truth)
        print(f"| {name} | none | refused | {'yes' if right else 'NO'} | {' '.join(truth)} |", flush=True)
        return right
    equal, place = verdict(name, processes)
    right = is_right(name, len(truth) == 1, equal, place)
    words = ["identical" if same else "not identical" for same in (len(truth) == 1, equal)]
    print(f"| {name} | {' | '.join(words)} | {'yes' if right else 'NO'} | {place} |", flush=True)
    return right


def verdict(name: str, processes: Processes) -> tuple[bool, str]:
    """Returns whether the check finds the same bits, and the place that it names."""
    said: list[str] = []
    equal = parity(lambda more: composed(name, 2, [f"parity.steps={STEPS}", *more], "parity"), said.append, processes)
    return equal, " ".join(line for line in said[-1].splitlines() if line.startswith(("Where: ", "Why: ")))


def is_refused(name: str, lines: set[str]) -> bool:
    """Do all processes refuse it in the one line that it has?"""
    model: Any = MODELS[name]
    (line, *others) = lines
    return not others and "\n" not in line and line.startswith(f"trainer.exact={WORKERS}: {name} {model.refused}")


def is_right(name: str, truth: bool, equal: bool, place: str) -> bool:
    """Is the verdict the truth, the truth what the model was written for, and the place the one that it has?"""
    if name in SAME:
        return truth and equal
    planted: Any = OTHER[name]
    owner = f"{planted.place} (" if planted.place.startswith("net") else planted.place or f"{name}'s training_step"
    return not truth and not equal and owner in place.partition(";")[0] and planted.reads in place.partition("Why: ")[2]


if __name__ == "__main__":
    main()
