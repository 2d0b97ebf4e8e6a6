"""Kills runs and sweeps, or asks them to stop, continues them, and compares their ends with those of undisturbed ones.

    python benchmarks/chaos.py kill 30 > benchmarks/chaos.md
    python benchmarks/chaos.py stop 40 --kinds 1 2 sweep
    python benchmarks/chaos.py kill 4 --kinds 2 --epochs 2 --seed 1

The kinds are a run of one process, a run of two, and a sweep of two jobs; the number is divided among them. `kill` sends SIGKILL
to what was started, or to one of two ranks, at any time from the first import to the last write, up to ten times a run. `stop`
sends SIGTERM once, at times from the first millisecond to after the last line: the command must end with code 75, or 0 if it was
finishing, within the deadline and with no process left. Before its first line a program is the interpreter's; the signal ends it.

The training has dropout, augmentation, shuffling in data workers, accumulation over an uneven tail, a schedule per step, an
average of the weights and two validations an epoch. Each run must end with the bits of the undisturbed one in its checkpoints,
with the same metrics, and with every sample of every epoch trained on once. Exit code 3 if one does not.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bitwise import differences
from hardware import processor
from lightning import Callback, LightningModule, Trainer
from run import heading

from lockstep.atomic_files import read_json, replace_text
from lockstep.checkpointing import read_checkpoint
from lockstep.errors import ExitCode
from lockstep.runs.saved import read_run_id

ROOT = Path(__file__).resolve().parents[1]
KINDS = {"1": "a run of 1", "2": "a run of 2", "sweep": "a sweep"}
KILLS_PER_RUN = 10
DEADLINE = 60  # seconds that a run has to stop
SLACK = 30  # seconds more for the processes around it, on a busy machine
MARK = "LOCKSTEP_CHAOS"  # in the environment of all that is started
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
    f"guards.preemption.deadline={DEADLINE}",
    "callbacks.pictures=null",
    "+callbacks.journal={_target_:chaos.Journal}",
)


class Journal(Callback):
    """Appends (epoch, batch, sample ids) of each training batch to a file per rank, and takes a little time."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        replace_text(Path(trainer.default_root_dir) / f"pid.{trainer.global_rank}", str(os.getpid()))

    def on_train_batch_start(self, trainer: Any, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        line = json.dumps([trainer.current_epoch, batch_idx, [*trainer.train_dataloader.sampler.draws(batch_idx)]]) + "\n"
        with (Path(trainer.default_root_dir) / f"journal.{trainer.global_rank}").open("a") as file:
            file.write(line)
        time.sleep(0.02)


class Killed(NamedTuple):
    kind: str
    kills: int
    verdict: str
    batches: int
    again: int  # of these batches, trained on more than once

    @property
    def is_good(self) -> bool:
        return self.verdict == "equal"


class Stopped(NamedTuple):
    kind: str
    moment: float
    code: int
    seconds: float
    left: bool  # is there anything in its directory?
    verdict: str

    @property
    def is_good(self) -> bool:
        before = self.code == -signal.SIGTERM and not self.left  # the interpreter was not up
        return self.verdict == "equal" and (before or self.code in (0, ExitCode.PREEMPTED)) and self.seconds < DEADLINE + SLACK


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("kill", "stop"))
    parser.add_argument("number", type=int)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which is killed")
    given = parser.parse_args()
    dice, rows = random.Random(given.seed), list[Any]()
    os.environ[MARK] = uuid.uuid4().hex
    print(heading(processor()), end="\n\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        for place, kind in enumerate(given.kinds):
            options, peaceful, since = (*TRAINING, f"trainer.max_epochs={given.epochs}"), Path(folder, kind), time.monotonic()
            _end(_begin(peaceful, kind, options), peaceful)
            length, count = time.monotonic() - since, len(range(place, given.number, len(given.kinds)))
            while given.action == "kill" and count > 0:
                run = Path(folder, f"{kind}-{count}")
                rows.append(_kill_often(run, kind, options, peaceful, min(count, KILLS_PER_RUN), dice))
                count -= max(1, rows[-1].kills)
            for number in range(count):
                moment = 1.05 * length * number / max(1, count - 1)
                rows.append(_stop(Path(folder, f"{kind}-{number}"), kind, options, peaceful, max(0.001, moment)))
    print("\n".join((_kill_table if given.action == "kill" else _stop_table)(rows)))
    sys.exit(0 if all(row.is_good for row in rows) else 3)


def _train(run: Path, *arguments: str) -> subprocess.Popen[bytes]:
    run.mkdir(exist_ok=True)
    for path in run.rglob("pid.*"):
        path.unlink()  # of an earlier life
    path = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    with (run / "output.txt").open("ab") as output:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


def _begin(run: Path, kind: str, options: Sequence[str]) -> subprocess.Popen[bytes]:
    if kind == "sweep":
        return _train(run, "-m", *options, "trainer.devices=1", "seed=1,2", f"hydra.sweep.dir={run}")
    return _train(run, *options, f"trainer.devices={kind}", f"hydra.run.dir={run}")


def _continue(run: Path, kind: str, options: Sequence[str]) -> subprocess.Popen[bytes]:
    has_begun = (run / ".hydra" / "overrides.yaml").is_file()
    return _train(run, f"resume={run}") if has_begun else _begin(run, kind, options)


def _end(process: subprocess.Popen[bytes], run: Path) -> None:
    assert process.wait(timeout=600) == 0, (run / "output.txt").read_text()[-3000:]


def _kill_often(run: Path, kind: str, options: Sequence[str], peaceful: Path, kills: int, dice: random.Random) -> Killed:
    """Train to the end in spite of `kills` kills, or as many as there is time for."""
    process, done = _begin(run, kind, options), 0
    while done < kills and _wait(process, run, dice):
        ranks = [int(path.read_text()) for path in run.glob("pid.*")]  # in a sweep these are further down
        _kill(dice.choice(ranks) if kind == "2" and ranks and dice.random() < 0.5 else process.pid)
        process.wait(timeout=120)
        time.sleep(1 if kind == "sweep" else 0.2)  # whatever else there was ends with it
        process, done = _continue(run, kind, options), done + 1
    _end(process, run)
    row = Killed(kind, done, *_verdict(run, peaceful))
    print(row, file=sys.stderr, flush=True)
    return row


def _wait(process: subprocess.Popen[bytes], run: Path, dice: random.Random) -> bool:
    """Wait until it is time to kill: mostly while it trains, sometimes at any moment. Return False if it has ended."""
    since, size = time.monotonic(), _trained(run)
    at_any_moment = dice.uniform(0, 8) if dice.random() < 0.2 else 600
    while time.monotonic() - since < at_any_moment and process.poll() is None:
        if _trained(run) > size:
            time.sleep(dice.uniform(0, 1.5))
            break
        time.sleep(0.01)
    return process.poll() is None


def _trained(run: Path) -> int:
    return sum(path.stat().st_size for path in run.rglob("journal.0"))


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _stop(run: Path, kind: str, options: Sequence[str], peaceful: Path, moment: float) -> Stopped:
    process = _begin(run, kind, options)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=moment)
    process.send_signal(signal.SIGTERM)
    since = time.monotonic()
    try:
        code = process.wait(timeout=DEADLINE + SLACK)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    seconds, alive = time.monotonic() - since, _alive()
    left = any(path.name != "output.txt" for path in run.iterdir())
    if not alive and code != 0:
        _end(_continue(run, kind, options), run)
    verdict = f"alive: {alive}" if alive else _verdict(run, peaceful)[0]
    row = Stopped(kind, moment, code, seconds, left, verdict)
    print(row, file=sys.stderr, flush=True)
    return row


def _alive() -> list[int]:
    """The processes that outlive their command by more than a moment. This one has no mark in /proc: it was set later."""
    mark, deadline = f"{MARK}={os.environ[MARK]}".encode(), time.monotonic() + 10
    while result := [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if _has(path, mark)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return result


def _has(path: Path, mark: bytes) -> bool:
    with contextlib.suppress(OSError):
        return mark in path.read_bytes()
    return False


def _verdict(run: Path, peaceful: Path) -> tuple[str, int, int]:
    """Return the difference, or "equal"; the number of batches trained on, and of those trained on more than once."""
    problems, batches, again = list[str](), 0, 0
    for record in peaceful.rglob("metrics.json"):
        pair = (run / record.parent.relative_to(peaceful), record.parent)
        for name in ("last.ckpt", "best.ckpt"):
            problems += [f"{name}{place}" for place in differences(*(_content(folder, name) for folder in pair))]
        current, whole = (read_json(folder / "metrics.json") or {} for folder in pair)
        problems += [] if current.get("metrics") == whole["metrics"] else ["metrics.json"]
        trained, repeated = _read_journals(pair[0], whole, problems)
        batches, again = batches + trained, again + repeated
    return ("; ".join(problems[:3]) or "equal"), batches, again


def _content(run: Path, name: str) -> Any:
    """A checkpoint without what tells one run from another: the name of its directory, and its id."""
    return _without(_without(read_checkpoint(name, run / "checkpoints" / name), str(run)), read_run_id(run) or str(run))


def _without(content: Any, text: str) -> Any:
    if isinstance(content, dict):
        return {_without(key, text): _without(value, text) for key, value in content.items()}
    return content.replace(text, "") if isinstance(content, str) else content


def _read_journals(run: Path, whole: dict[str, Any], problems: list[str]) -> tuple[int, int]:
    """Look at each batch that was trained on: the same samples each time, and in an epoch each sample once."""
    seen: dict[tuple[int, int, str], list[int]] = {}
    again = 0
    for journal in run.glob("journal.*"):
        for line in journal.read_text().splitlines():
            epoch, batch, ids = json.loads(line)
            again += (epoch, batch, journal.name) in seen
            if seen.setdefault((epoch, batch, journal.name), ids) != ids:
                problems.append(f"other samples in batch {batch} of epoch {epoch}")
    for epoch in range(whole["epochs"]):
        counts = Counter(i for (e, _, _), ids in seen.items() if e == epoch for i in ids)
        if counts != Counter(range(whole["samples"]["train"])):
            problems.append(f"not every sample once in epoch {epoch}")
    return len(seen), again


def _kill_table(rows: Sequence[Killed]) -> list[str]:
    lines = ["| | runs | kills | batches trained on | of these again, after a kill | equal to the undisturbed one |"]
    lines.append("|---|---|---|---|---|---|")
    for kind in dict.fromkeys(row.kind for row in rows):
        mine = [row for row in rows if row.kind == kind]
        kills, batches, again = (sum(column) for column in zip(*((row.kills, *row[3:]) for row in mine), strict=True))
        good = sum(row.is_good for row in mine)
        lines.append(f"| {KINDS[kind]} | {len(mine)} | {kills} | {batches} | {again} | {good} of {len(mine)} |")
    return lines + [f"\nnot equal: {KINDS[row.kind]}, {row.kills} kills: {row.verdict}" for row in rows if not row.is_good]


def _stop_table(rows: Sequence[Stopped]) -> list[str]:
    lines = ["| | SIGTERM after (s) | code | ended within (s) | directory left | continued to the end |"]
    lines.append("|---|---|---|---|---|---|")
    for kind, moment, code, seconds, left, verdict in rows:
        lines.append(f"| {KINDS[kind]} | {moment:.3g} | {code} | {seconds:.1f} | {'yes' if left else 'no'} | {verdict} |")
    good, longest = sum(row.is_good for row in rows), max(row.seconds for row in rows)
    return [*lines, f"\n{good} of {len(rows)} as they should be; the longest end took {longest:.1f} s."]


if __name__ == "__main__":
    main()
