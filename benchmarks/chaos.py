"""Kills runs at random times and continues them, until they are done; then compares them with runs left in peace.

    python benchmarks/chaos.py kills=100 > benchmarks/chaos.md
    python benchmarks/chaos.py kills=4 devices=2 epochs=2 seed=1

Half of the kills hit a run of one process, half a run of two; `kill -9` of what was started, or of one of its ranks, from
the first import to the last write. The training has all that could go wrong: dropout, augmentation, shuffling in data
workers, accumulation over an uneven tail, a schedule per step, an average of the weights, a validation twice an epoch.
Every run must end with the same checkpoint, bit for bit, the same metrics, and every sample of every epoch's global
batches trained on once. Exit code 3 if one does not.
"""

import contextlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bitwise import differences
from lightning import Callback, LightningModule, Trainer

from lockstep.atomic_files import read_json, replace_text
from lockstep.checkpointing import read_checkpoint
from lockstep.cli import start
from lockstep.config.rules import integer
from lockstep.errors import config_error
from lockstep.runs.identity import read_run_id

ROOT = Path(__file__).resolve().parents[1]
KILLS_PER_RUN = 10
TRAINING = (
    "trainer=cpu",
    "trainer.accumulate_grad_batches=2",
    "trainer.val_check_interval=0.5",
    "datamodule.global_batch_size=48",
    "datamodule.drop_last=false",
    "datamodule.num_workers=1",
    "datamodule.augment={crop: 1, flip: true}",
    "model=mlp",
    "model.net.dropout=0.2",
    "model/lr_scheduler=cosine",
    "model.lr_scheduler.warmup_steps=10",
    "callbacks=ema",
    "guards.checkpoint.every_n_steps=3",
    "callbacks.pictures=null",
    "+callbacks.journal={_target_:chaos.Journal}",
)


class Journal(Callback):
    """Appends (epoch, batch, sample ids) of each training batch to a file per rank, and takes a little time."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        replace_text(Path(trainer.default_root_dir) / f"pid.{trainer.global_rank}", str(os.getpid()))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        line = json.dumps([trainer.current_epoch, batch_idx, batch.ids.tolist()]) + "\n"
        with (Path(trainer.default_root_dir) / f"journal.{trainer.global_rank}").open("a") as file:
            file.write(line)
        time.sleep(0.02)


def main() -> None:
    settings = _settings(sys.argv[1:])
    dice = random.Random(settings["seed"])
    worlds = [settings["devices"]] if "devices" in settings else [1, 2]
    began, rows = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        for world in worlds:
            peaceful = Path(folder) / f"{world}-in-peace"
            options = (*TRAINING, f"trainer.devices={world}", f"trainer.max_epochs={settings['epochs']}")
            whole = _train(peaceful, *options, f"hydra.run.dir={peaceful}")
            assert whole.wait(timeout=600) == 0, (peaceful / "output.txt").read_text()
            kills = settings["kills"] // len(worlds)
            while kills > 0:
                run = Path(folder) / f"{world}-{kills}"
                done = _torment(run, (*options, f"hydra.run.dir={run}"), world, min(kills, KILLS_PER_RUN), dice)
                rows.append((world, done, *_verdict(run, peaceful, world)))
                print(f"{world} process(es), {done} kills: {rows[-1][2]}", file=sys.stderr, flush=True)
                kills -= max(1, done)
    _show(rows, settings, time.monotonic() - began)
    if any(verdict != "equal" for _, _, verdict, *_ in rows):
        sys.exit(3)


def _settings(arguments: list[str]) -> dict[str, int]:
    settings = {"kills": 100, "seed": 0, "epochs": 4}
    for argument in arguments:
        if argument in ("-h", "--help"):
            print(__doc__)
            sys.exit(0)
        key, _, value = argument.partition("=")
        if key not in ("kills", "seed", "devices", "epochs") or not value.isdigit() or (key != "seed" and value == "0"):
            raise config_error(key, value, f"accepted are kills, devices, epochs and seed; {integer(1).words}")
        settings[key] = int(value)
    return settings


def _train(run: Path, *arguments: str) -> subprocess.Popen[bytes]:
    run.mkdir(exist_ok=True)
    for path in run.glob("pid.*"):
        path.unlink()  # of an earlier life
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # unchanged where it will do: a warm server takes no other
    path = os.pathsep.join([*(own for own in (str(ROOT / "benchmarks"), str(ROOT / "src")) if own not in given), *given])
    with (run / "output.txt").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), *arguments],
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _torment(run: Path, begin: tuple[str, ...], world: int, kills: int, dice: random.Random) -> int:
    """Trains to the end in spite of `kills` kills; returns how many there were time for."""
    process = _train(run, *begin)
    for done in range(kills):
        if not _wait(process, run, dice):
            return done
        victims = [process.pid] if world == 1 or dice.random() < 0.5 else _ranks(run)
        _kill(dice.choice(victims or [process.pid]))
        process.wait(timeout=120)
        time.sleep(0.2)  # whatever else there was ends with it
        process = _train(run, *((f"resume={run}",) if (run / ".hydra" / "overrides.yaml").is_file() else begin))
    assert process.wait(timeout=600) == 0, (run / "output.txt").read_text()[-3000:]
    return kills


def _wait(process: subprocess.Popen[bytes], run: Path, dice: random.Random) -> bool:
    """Until it is time to kill: mostly while it trains, sometimes at any moment. False if the run has ended before."""
    journal = run / "journal.0"
    since, size = time.monotonic(), journal.stat().st_size if journal.exists() else 0
    at_any_moment = dice.uniform(0, 8) if dice.random() < 0.2 else 600
    while time.monotonic() - since < at_any_moment and process.poll() is None:
        if journal.exists() and journal.stat().st_size > size:
            time.sleep(dice.uniform(0, 1.5))
            break
        time.sleep(0.01)
    return process.poll() is None


def _ranks(run: Path) -> list[int]:
    """The processes that train."""
    return [int(path.read_text()) for path in run.glob("pid.*")]


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _verdict(run: Path, peaceful: Path, world: int) -> tuple[str, int, int]:
    """What differs, if anything; how many batches were trained on, and how many of them more than once."""
    result = []
    for name in ("last.ckpt", "best.ckpt"):
        pair = (_content(folder, name) for folder in (run, peaceful))
        result += [f"{name}{place}" for place in differences(*pair)]
    current, whole = (read_json(folder / "metrics.json") or {} for folder in (run, peaceful))
    if current.get("metrics") != whole["metrics"]:
        result.append("metrics.json")
    batches, again = _journal(run, world, whole, result)
    return ("; ".join(result[:3]) or "equal"), batches, again


def _content(run: Path, name: str) -> Any:
    """A checkpoint less what tells one run from another: the name of its directory, and its id."""
    return _without(_without(read_checkpoint(name, run / "checkpoints" / name), str(run)), read_run_id(run) or str(run))


def _without(content: Any, text: str) -> Any:
    if isinstance(content, dict):
        return {_without(key, text): _without(value, text) for key, value in content.items()}
    return content.replace(text, "") if isinstance(content, str) else content


def _journal(run: Path, world: int, whole: dict[str, Any], result: list[str]) -> tuple[int, int]:
    """Looks at each batch that was trained on: the same samples each time, and in an epoch each sample once."""
    seen: dict[tuple[int, int, int], list[int]] = {}
    again = 0
    for rank in range(world):
        for line in (run / f"journal.{rank}").read_text().splitlines():
            epoch, batch, ids = json.loads(line)
            again += (epoch, batch, rank) in seen
            if seen.setdefault((epoch, batch, rank), ids) != ids:
                result.append(f"other samples in batch {batch} of epoch {epoch}")
    for epoch in range(whole["epochs"]):
        counts = Counter(i for (e, _, _), ids in seen.items() if e == epoch for i in ids)
        if counts != Counter(range(whole["samples"]["train"])):
            result.append(f"not every sample once in epoch {epoch}")
    return len(seen), again


def _show(rows: list[tuple[Any, ...]], settings: dict[str, int], seconds: float) -> None:
    command = " ".join(f"{key}={value}" for key, value in settings.items())
    print(f"`python benchmarks/chaos.py {command}`; Python {platform.python_version()}, {platform.machine()}, {seconds:.0f} s.\n")
    print("| processes | runs | kills | batches trained on | of these again, after a kill | runs equal to the undisturbed one |")
    print("|---|---|---|---|---|---|")
    for world in sorted({row[0] for row in rows}):
        mine = [row for row in rows if row[0] == world]
        sums = [sum(row[i] for row in mine) for i in (1, 3, 4)]
        equal = sum(row[2] == "equal" for row in mine)
        print(f"| {world} | {len(mine)} | {sums[0]} | {sums[1]} | {sums[2]} | {equal} of {len(mine)} |")
    for world, kills, verdict, *_ in rows:
        if verdict != "equal":
            print(f"\nnot equal: {world} process(es), {kills} kills: {verdict}")


if __name__ == "__main__":
    start(main)
