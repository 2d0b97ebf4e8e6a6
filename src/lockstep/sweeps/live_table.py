"""How the jobs of a sweep stand, for a person, while it runs or afterwards."""

import re
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from lockstep.console import say, table
from lockstep.launchers.slurm import Unanswered
from lockstep.runs.locks import is_held
from lockstep.sweeps.job_directory import FINISHED, RUNNING, progress_of, record_of
from lockstep.sweeps.jobs import varying
from lockstep.sweeps.manifest import Manifest

COLUMNS = ("job", "overrides", "devices", "state", "epoch", "metric", "samples/s", "time", "expected end")


class LiveTable:
    """One live table on a terminal; elsewhere a line whenever a job changes its state."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._live: Live | None = None
        self._said: dict[str, str] = {}
        self._due = 0.0

    def show(self) -> None:
        if not sys.stdout.isatty():
            self._say_changes()
        elif time.monotonic() > self._due:
            self._due = time.monotonic() + 1
            if self._live is None:
                self._live = Live(console=Console(), auto_refresh=False, transient=True)
                self._live.start()
            self._live.update(table(rows_of(self.manifest), COLUMNS), refresh=True)

    def close(self) -> None:
        """Takes the live table away; the last changes are said."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        elif not sys.stdout.isatty():
            self._say_changes()

    def _say_changes(self) -> None:
        for key, job in self.manifest.jobs.items():
            state = f"{job['status']}{len(job['attempts'])}"
            if job["attempts"] and self._said.get(key) != state:
                self._said[key] = state
                metric = "" if job["metric"] is None else f"  {job['optimized_metric']} {job['metric']:.6g}"
                why = f"  {clause(job['reason'])}" if job["reason"] else ""
                print(f"{job['directory']}: {job['status']}{metric}{why}", flush=True)


def as_it_stands(manifest: Manifest) -> Manifest:
    """For who only looks: jobs that are said to run, in a directory that no sweep holds, have been interrupted, unless a
    cluster has them."""
    if not is_held(manifest.directory):
        manifest.settle()
        if manifest.in_queue():
            from lockstep.sweeps import slurm

            try:
                slurm.settle(manifest)
            except Unanswered as error:
                say(str(error))
    return manifest


def clause(reason: str) -> str:
    """A reason's first clause: all that a table has room for. The whole is in the job's log and its status.json."""
    return reason if len(reason) <= 60 else textwrap.shorten(re.split(r"[,;]\s", reason)[0], 80, placeholder=" ...")


def rows_of(manifest: Manifest) -> list[tuple[str, ...]]:
    """A row of COLUMNS per job, as things stand."""
    keys = varying([job["overrides"] for job in manifest.jobs.values()])
    return [_row(job, manifest.directory / job["directory"], keys) for job in manifest.jobs.values()]


def _row(job: dict[str, Any], folder: Path, keys: Sequence[str]) -> tuple[str, ...]:
    progress = progress_of(folder)
    record = (record_of(folder) or {}) if job["status"] == FINISHED else {}
    metric = job["metric"] if job["metric"] is not None else progress.get("metrics", {}).get(job["optimized_metric"])
    rate = record.get("samples_per_second", progress.get("samples_per_second"))
    shown = " ".join(override for override in job["overrides"] if override.partition("=")[0] in keys)
    state = f"{job['status']}: {clause(job['reason'])}" if job["reason"] else job["status"]
    epoch = f"{progress.get('epoch')}/{progress.get('epochs')}" if progress else ""
    numbers = ("" if metric is None else f"{metric:.5g}", "" if rate is None else f"{rate:,.0f}")
    return (str(job["number"]), shown, str(job["devices"]), state, epoch, *numbers, _spent(job), _expected_end(job, progress))


def _spent(job: dict[str, Any]) -> str:
    if not job["attempts"]:
        return ""
    return f"{(job['attempts'][-1]['ended'] or time.time()) - job['attempts'][-1]['started']:.0f} s"


def _expected_end(job: dict[str, Any], progress: dict[str, Any]) -> str:
    epochs, epoch, seconds = (progress.get(name) or 0 for name in ("epochs", "epoch", "seconds_per_epoch"))
    if job["status"] != RUNNING or epochs <= 0:
        return ""
    return time.strftime("%H:%M:%S", time.localtime(time.time() + (epochs - epoch) * seconds))
