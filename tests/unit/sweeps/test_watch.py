"""A sweep from another terminal: its table, and what damage does to it in between."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import fake_sweep
import pytest
import sweep
from rich.console import Console

from lockstep.errors import ConfigError
from lockstep.sweeps import view
from lockstep.sweeps.executor import queues
from lockstep.sweeps.manifest import Manifest
from lockstep.sweeps.table import LiveTable, layout, summary
from lockstep.sweeps.view import SweepView, look_at

STATES = ("finished", "finished", "running", "failed", "waiting", "waiting")


def made(folder: Path, *states: str) -> Manifest:
    """Finished jobs have taken 40 s; those that run have run for 10 s, and will for 20 more."""
    jobs = {fake_sweep.job(folder, i, seed=i): state for i, state in enumerate(states)}
    manifest = fake_sweep.sweep(folder, {job: "interrupted" if state == "running" else state for job, state in jobs.items()})
    for number, (job, state) in enumerate(jobs.items()):
        for attempt in manifest.jobs[job.key]["attempts"]:
            attempt |= {"started": 100.0, "ended": 140.0}
        if state == "running":
            attempts = [{"started": time.time() - 10, "ended": None, "code": None}]
            manifest.update(job.key, status="running", reason=None, attempts=attempts)
            progress = {"epoch": 1, "epochs": 3, "step": 70 + number, "share": 0.34, "seconds_left": 20.0}
            progress |= {"metrics": {"val/acc": 0.25}, "samples_per_second": 1234.5}
            (job.directory / "progress.json").write_text(json.dumps(progress))
    manifest.save()
    return manifest


def looked_at(folder: Path) -> SweepView:
    with fake_sweep.held(folder):
        return look_at(folder)


def printed(view: SweepView, width: int, height: int | None = None) -> list[str]:
    console = Console(width=width)
    with console.capture() as text:
        console.print(layout(view, "", width, height))
    return text.get().splitlines()


def test_a_running_job_shows_how_far_it_is(tmp_path: Path) -> None:
    made(tmp_path, *STATES)
    lines = printed(looked_at(tmp_path), 160)
    row = next([cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│ running " in line)
    assert row[:8] == ["2", "seed=2", "1", "running", "1/3", "72", "34%", "0.25"]
    assert (row[8], row[10]) == ("1,234", "0:00:20")
    assert "3 failed: planted" in [line.strip() for line in lines]


def test_a_finished_job_has_taken_what_its_record_says(tmp_path: Path) -> None:
    """The first one's attempt has waited for the server that jobs are forked from; one that was continued has had two."""
    manifest = made(tmp_path, "finished", "finished")
    record = manifest.directory / manifest.jobs[f"{0:012x}"]["directory"] / "metrics.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"wall_time": 7.5}))
    assert [job.seconds for job in looked_at(tmp_path).jobs] == [7.5, 40.0]


def test_a_reason_is_shown_once_for_all_that_have_it_and_of_an_attempt_before(tmp_path: Path) -> None:
    manifest = made(tmp_path, *["failed"] * 8, "running", "waiting")
    manifest.jobs[f"{8:012x}"]["attempts"].insert(0, {"started": 1.0, "ended": 2.0, "reason": "out of memory"})
    manifest.update(f"{9:012x}", reason="in SLURM's queue: Resources")
    lines = [line.strip() for line in printed(looked_at(tmp_path), 100)]
    assert "0, 1, 2, 3, 4, 5 and 2 more failed: planted" in lines
    assert "8 tried again: out of memory" in lines
    assert "9 waiting: in SLURM's queue: Resources" in lines


@pytest.mark.parametrize("width", [60, 100])
def test_a_narrow_terminal_has_what_matters_most(width: int, tmp_path: Path) -> None:
    manifest = made(tmp_path, *STATES)
    for number, job in enumerate(manifest.jobs.values()):
        job["overrides"] = [f"model.optimizer.lr={10.0**-number}", f"datamodule.some_long_key={'x' * 40}{number}"]
    manifest.save()
    table = [line for line in printed(looked_at(tmp_path), width) if line[0] in "┏┃┡│└"]
    assert {len(line) for line in table} == {len(table[0])}
    assert len(table[0]) <= width
    for state, metric in (("running", "0.25"), ("finished", "0.5"), ("failed", "")):
        assert any(f" {state} " in line and metric in line and "lr=" in line for line in table)


def test_overrides_have_the_last_words_of_their_keys(tmp_path: Path) -> None:
    manifest = made(tmp_path, "waiting", "waiting")
    for number, job in enumerate(manifest.jobs.values()):
        job["overrides"] = [f"model.optimizer.lr={number}", f"+a.size={number}", "same=1"]
    manifest.save()
    assert [job.label for job in looked_at(tmp_path).jobs] == ["lr=0 size=0", "lr=1 size=1"]


def test_more_jobs_than_lines_leave_out_those_that_wait(tmp_path: Path) -> None:
    made(tmp_path, *["waiting"] * 20, "running", "failed")
    lines = printed(looked_at(tmp_path), 100, height=15)
    assert len(lines) < 15
    assert sum("running" in line or "failed" in line for line in lines if line.startswith("│")) == 2
    assert any(line.startswith("and 16 more jobs") for line in lines)


def test_the_summary_counts_the_jobs_that_are_still_to_come(tmp_path: Path) -> None:
    manifest = made(tmp_path, *STATES)
    assert summary(looked_at(tmp_path)) == ("2 of 6 jobs finished, 1 running, 2 waiting, 1 failed · best val/acc 0.5 (job 0)")
    manifest.planned = 8
    manifest.save()
    assert summary(looked_at(tmp_path)).startswith("2 of 8 jobs finished, 1 running, ")


def test_of_jobs_with_several_metrics_none_is_the_best(tmp_path: Path) -> None:
    manifest = made(tmp_path, "finished", "finished", "finished")
    key = next(iter(manifest.jobs))
    manifest.update(key, optimized_metric="val/mse", optimized_mode="min", metric=0.1)
    manifest.save()
    view = looked_at(tmp_path)
    assert [job.number for job in view.jobs][-1] == 0  # after those of the other metric
    assert view.best is None
    assert summary(view) == "3 of 3 jobs finished"


@pytest.mark.parametrize(
    ("states", "code", "note"),
    [
        (("finished", "finished"), 0, ""),
        (("finished", "failed"), 1, "No sweep process. Try again what failed: "),
        (("finished", "waiting"), 1, "No sweep process. Start it again: "),
        (("finished", "failed", "running", "waiting"), 75, "No sweep process. Start it again: "),
    ],
)
def test_one_that_nobody_runs_is_shown_with_its_exit_code_and_not_touched(
    states: tuple[str, ...], code: int, note: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, *states)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert sweep.watch(tmp_path, 0.1) == code
    said = capsys.readouterr().out
    assert ("No sweep process" in said) == (note != "")
    assert note in said
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("state", "code"), [("finished", 0), ("failed", 1)])
def test_a_job_that_an_edited_file_has_replaced_asks_for_nothing(state: str, code: int, tmp_path: Path) -> None:
    before, now = (fake_sweep.job(tmp_path, i, hidden=hidden) for i, hidden in enumerate((256, 128)))  # of the same overrides
    fake_sweep.sweep(tmp_path, {before: "interrupted", now: state})
    view = look_at(tmp_path)
    assert (view.exit_code, sweep.advice(view) == "") == (code, code == 0)
    assert len(view.jobs) == 2


def test_a_job_that_an_edited_file_has_replaced_is_not_the_best(tmp_path: Path) -> None:
    """Until the edit is undone."""
    before, now = (fake_sweep.job(tmp_path, i, hidden=hidden) for i, hidden in enumerate((256, 128)))
    fake_sweep.sweep(tmp_path, {before: "finished"})
    manifest = fake_sweep.sweep(tmp_path, {now: "finished"})
    fake_sweep.leave(manifest, before, "finished", 0.9)
    assert (best := look_at(tmp_path).best) is not None
    assert (best.key, best.metric) == (now.key, 0.5)
    manifest.register([before])
    assert (best := look_at(tmp_path).best) is not None
    assert (best.key, best.metric) == (before.key, 0.9)


def test_one_look_at_what_runs_is_no_failure_and_ctrl_c_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, *STATES)

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sweep.time.sleep", interrupted)
    with fake_sweep.held(tmp_path):
        assert sweep.watch(tmp_path, 1.0, once=True) == 0
        assert sweep.watch(tmp_path, 1.0) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_what_is_half_written_or_goes_away_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    folder.mkdir()
    manifest = made(folder, *STATES)
    manifest.path.write_text('{"jobs": {')
    (folder / manifest.jobs[f"{2:012x}"]["directory"] / "progress.json").write_text("{")
    assert len(looked_at(folder).jobs) == len(STATES)
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="names no jobs"):
        look_at(folder)


def test_a_queue_is_asked_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process runs the sweep, every ten seconds."""
    manifest = made(tmp_path, "finished", "running")
    manifest.jobs[f"{1:012x}"]["attempts"][-1]["queue"] = "lockstep-0_0"
    manifest.save()
    queue, pauses = SimpleNamespace(show_state=leave_the_queue_at_the_third_look([])), list[float]()
    monkeypatch.setattr(view, "queues", lambda: [queue])
    monkeypatch.setattr("sweep.time.sleep", pauses.append)
    assert sweep.watch(tmp_path, 1.0) == 75
    assert pauses == [sweep.QUEUE_INTERVAL] * 2


def leave_the_queue_at_the_third_look(looks: list[Manifest]) -> Callable[[Manifest], None]:
    def reconcile(manifest: Manifest) -> None:
        looks.append(manifest)
        if len(looks) == 3:
            manifest.jobs[f"{1:012x}"]["attempts"][-1]["ended"] = 1.0

    return reconcile


def test_each_queue_that_is_named_can_be_asked() -> None:
    assert all(callable(queue.show_state) and callable(queue.cancel) for queue in queues())


@pytest.mark.parametrize("arguments", [["nowhere"], ["."], [".", "--interval", "0"]])
def test_what_is_no_sweep_is_refused_in_one_line(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sweep.py", "watch", *arguments])
    with pytest.raises(ConfigError, match=r"SWEEP_DIR=\S+: names no jobs|--interval=0.0: accepted is a number of seconds"):
        sweep.main()


def test_elsewhere_than_on_a_terminal_a_change_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, table, note = made(tmp_path, *STATES), LiveTable(), "a note"
    table.show(SweepView(manifest), note)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == note
    assert [line.partition("  ")[0] for line in lines if ": running" not in line] == ["1 of 6", "2 of 6", "3 of 6"]
    table.show(SweepView(manifest), note)
    manifest.update(f"{2:012x}", status="failed", reason="planted")
    table.show(SweepView(manifest), note)
    said = capsys.readouterr().out
    assert said.startswith("4 of 6  ")
    assert said.endswith(": failed  planted\n")
    assert said.count("\n") == 1
