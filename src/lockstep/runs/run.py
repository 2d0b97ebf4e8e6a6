"""One run in one process: its directory, its status and its exit code."""

import logging
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log, setup_globals
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from lockstep import console
from lockstep.atomic_files import read_json, remove_partial_files, replace_text, write_json
from lockstep.config.plan import Plan
from lockstep.errors import ExitCode
from lockstep.launchers.environment import cores, log_plainly, queue, rank_log, register_resolvers, restarts, this_rank
from lockstep.launchers.heartbeat import DEBUGGED, HEARTBEAT
from lockstep.launchers.outcome import Outcome, Report, classify_error, original_error
from lockstep.launchers.rank import end_workers, leave_process_group
from lockstep.launchers.stop_signals import STOP_SIGNALS
from lockstep.places import import_from_project
from lockstep.runs import record
from lockstep.runs.locks import Lock

log = logging.getLogger(__name__)


class Run:
    """A context manager that records its outcome in status.json and exits with the matching code, by SystemExit.

    With several processes, `is_parent` is true in the process that the user started; it only starts and watches the ranks.
    With one process, or under torchrun and srun, there is no such parent and rank zero writes the status.
    `checkpoint` is the checkpoint to resume or fork from.
    """

    def __init__(
        self, cfg: DictConfig, plan: Plan, *, is_resumed: bool = False, report: Report | None = None, started: float | None = None
    ) -> None:
        """`report` sends a rank's outcome to its parent; `started` is when the parent's run has started, by time.monotonic()."""
        self.cfg, self.plan, self.is_resumed, self._report = cfg, plan, is_resumed, report
        self.directory = Path(cfg.run_dir)
        self._log, self._metrics = self.directory / rank_log(), self.directory / "metrics.json"
        self.rank = this_rank()
        self._global_rank = self.rank.global_rank if self.rank else 0
        self.is_owner = report is None and self._global_rank == 0  # writes the status and messages
        self.is_parent = self.rank is None and (self.plan.world_size > 1 or cfg.max_restarts > 0)
        self.lock: Lock | None = None  # of the directory; taken when the run begins unless it is set before
        self.before: dict[Path, str] = {}  # a resumed run's files, which a refused resumption leaves as they were
        self.checkpoint: Path | None = None
        self.result: float | None = None
        self._code: int | None = None  # exit code, once it is known
        self._mirror: Any = None
        self._started = started or time.monotonic()

    def __enter__(self) -> Self:
        if self.is_owner and self.lock is None:
            self.lock = Lock(self.directory, "run_dir")
        try:
            if self.is_owner:
                self._record_start()
            STOP_SIGNALS.listen()
            if not self.is_parent:  # watched by a thread, which works while the main thread is stuck
                limit = _deadline(self.cfg, "guards.watchdog.seconds_to_first_batch")
                HEARTBEAT.start(limit, self._log, self._give_up, _deadline(self.cfg, "guards.preemption.deadline"))
                self.checkpoint = self._find_checkpoint()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        if self.checkpoint is not None:
            self.cfg.init_from = None
        return self

    def _record_start(self) -> None:
        remove_partial_files(self.directory)
        (self.directory / DEBUGGED).unlink(missing_ok=True)
        self._metrics.unlink(missing_ok=True)  # of an earlier end
        record.write_status(self.directory, "running", is_first=not self.is_resumed)
        self._append_to_log(OmegaConf.to_yaml(self.cfg, resolve=True))  # in the log file alone
        if self.cfg.get("mirror") is not None:
            self._mirror = get_object("lockstep.mirror.Mirror")(self.cfg.mirror, self.directory)
        log.info(str(self.plan))

    def _append_to_log(self, text: str) -> None:
        with self._log.open("a", errors="backslashreplace") as file:
            file.write(text)

    def _find_checkpoint(self) -> Path | None:
        """Return the run's own checkpoint to resume from, else the other run's to fork from, or None."""
        checkpoint = None
        if self.is_resumed:
            from lockstep.checkpointing import latest_valid_checkpoint

            checkpoint = latest_valid_checkpoint(self.directory / "checkpoints")
            begins = "There is no checkpoint yet: the run starts from the beginning."
            log.info(begins if checkpoint is None else f"Continuing from {checkpoint}")
        if checkpoint is None and self.cfg.get("fork") is not None:
            from lockstep.runs.fork import find_checkpoint

            checkpoint, _ = find_checkpoint(self.cfg.fork)
        return checkpoint

    def _give_up(self, error: BaseException) -> None:
        """Exit from a helper thread without joining the main thread."""
        try:
            if self._code is None:
                self._end(classify_error(error, self._global_rank))
        finally:
            for worker in multiprocessing.active_children():
                worker.kill()
            os._exit(1 if self._code is None else self._code)

    def launch(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call `function(run, *arguments)` in each rank; restart them at most max_restarts times. The result is rank zero's."""
        from lockstep.launchers.launch import launch  # most runs have one process
        from lockstep.launchers.processes import importable

        cfg = self.cfg.copy()
        OmegaConf.resolve(cfg)  # ${now:} is the same in all of them
        attempt = 0
        while True:
            outcome = launch(
                _run_rank,
                importable(function),
                arguments,
                HydraConfig.instance().cfg,  # None in scripts
                cfg,
                self.plan,
                self.is_resumed or attempt > 0,
                self._started,
                world_size=self.plan.world_size,
                log=self.directory / "train.log",
                restarts=restarts() + attempt,
                stop_deadline=_deadline(cfg, "guards.preemption.deadline"),
                fresh=cfg.fresh_processes,
            )
            if outcome.code != ExitCode.FAILED or outcome.is_final or attempt >= cfg.max_restarts:
                break
            attempt += 1
            log.warning(f"{outcome.reason}; restart {attempt} of {cfg.max_restarts}")
        if attempt and outcome.code == ExitCode.REFUSED:  # it has trained before
            outcome = replace(outcome, code=ExitCode.FAILED)
        if outcome.code:
            self._end(outcome)
        self._close(read_json(self._metrics) or {})

    def finish(self, trainer: Any) -> None:
        """Write metrics.json on rank zero, and destroy the process group; called on every rank."""
        from lockstep.runs.results import collect_result, log_result

        result = collect_result(self.cfg, self.plan, trainer, time.monotonic() - self._started)
        result["cores"] = None if self._report is None else len(cores())  # which all of its processes share
        if trainer.is_global_zero:
            log_result(self.cfg, trainer, result, result["metrics"])
            write_json(self._metrics, result)
        leave_process_group()
        STOP_SIGNALS.leave()
        self._close(result)

    def _close(self, result: dict[str, Any]) -> None:
        value = result["metrics"].get(result["optimized_metric"])
        self.result = math.nan if value is None else value
        if self.is_owner:
            record.write_status(self.directory, "finished", result.get("ended_by"))
            console.show_result(self.directory, result)
        self._code = ExitCode.FINISHED

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        STOP_SIGNALS.leave()
        try:
            if error is not None and self._code is None:
                error = STOP_SIGNALS.raised or original_error(error)  # errors while exiting are its consequences
                self._end(classify_error(error, self._global_rank, HEARTBEAT.has_stepped))
        finally:
            HEARTBEAT.stop()
            end_workers()
            if self._mirror is not None and self._code != ExitCode.REFUSED:
                self._mirror.finish()
            STOP_SIGNALS.end_with(1 if self._code is None else self._code)
            if self.lock is not None:
                self.lock.close()

    def _end(self, outcome: Outcome) -> None:
        """Report once why the run ends, to the parent or on the terminal, and exit. Without a parent any rank may report the
        failure."""
        self._code = outcome.code
        if self._report is not None:
            self._report(outcome)
            self._append_to_log(outcome.traceback or "")
        elif outcome.code != ExitCode.PREEMPTED:
            self._end_failed(outcome)
        elif self.is_owner:
            self._end_preempted(outcome)
        raise SystemExit(outcome.code)

    def _end_failed(self, outcome: Outcome) -> None:
        if outcome.traceback:
            log.error(outcome.traceback)
        is_refused = outcome.code == ExitCode.REFUSED
        console.say(str(outcome.reason) if is_refused else f"The run failed: {outcome.reason}. Logs: {self.directory}")
        if is_refused and self.is_resumed:
            for file, content in self.before.items():
                replace_text(file, content)
        else:
            record.write_failure(self.directory, outcome.reason, outcome.rank, outcome.has_lost_rank, is_refused)

    def _end_preempted(self, outcome: Outcome) -> None:
        if (read_json(self.directory / "status.json") or {}).get("status") == "failed":
            return  # another rank has failed, after which torchrun asks the others to stop
        record.write_status(self.directory, "preempted", outcome.reason, outcome.rank)
        resume = console.command_line("python", Path(sys.argv[0]), f"resume={console.relative(self.directory)}")
        console.say(f"The run was {outcome.reason}. Continue it: {resume}")
        given = HydraConfig.get().overrides.hydra if HydraConfig.initialized() else ()
        is_named = any(item.startswith("hydra.run.dir=") for item in given)
        job = queue()
        if job is not None and (line := job.requeue_when_warned(outcome.signal, is_named)):  # which may end this process
            console.say(line)


def _run_rank(
    report: Report,
    function: Any,
    arguments: Sequence[Any],
    hydra: Any,
    cfg: DictConfig,
    plan: Plan,
    is_resumed: bool,
    started: float,
) -> None:
    """Run a rank, after the set-up that Hydra and the command line did in the parent. `hydra` is Hydra's part of the config."""
    console.survive_lost_output()
    import_from_project()
    setup_globals()
    register_resolvers()
    if hydra is None:
        log_plainly()
    else:
        HydraConfig.instance().cfg = hydra  # pyright: ignore[reportAttributeAccessIssue]
        configure_log(hydra.hydra.job_logging, hydra.hydra.verbose)
    with Run(cfg, plan, is_resumed=is_resumed, report=report, started=started) as run:
        function(run, *arguments)


def _deadline(cfg: DictConfig, key: str) -> float:
    """Return the seconds at `key`; infinity if the guard was removed or its limit is null."""
    seconds = OmegaConf.select(cfg, key)
    return float("inf") if seconds is None else seconds
