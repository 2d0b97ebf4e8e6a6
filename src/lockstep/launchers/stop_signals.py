"""Being asked to stop: SIGTERM, SIGUSR1 (SLURM's warning before a time limit) and Ctrl-C, in a process that trains."""

import os
import signal
import subprocess
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
PREEMPTED = 75  # exit code: EX_TEMPFAIL of sysexits.h, to be resumed


class Preempted(BaseException):
    """The run was asked to stop and can be resumed. Like KeyboardInterrupt it is nobody's to catch on the way."""

    def __init__(self, number: int) -> None:
        super().__init__(f"preempted by {signal.Signals(number).name}")
        self.number = number


class StopSignals:
    """What this process was asked by signals. Raises Preempted at once, or, while `deferred`, only notes it, for
    whoever asks at the next step boundary: a signal handler is no place for a collective or a checkpoint.

    The second Ctrl-C is always at once.
    """

    def __init__(self) -> None:
        self.deferred = False
        self.received = 0  # the signal's number; the first one, but SIGUSR1 wins: it asks for a requeue
        self._interrupts = 0
        self._process = 0

    @property
    def is_listening(self) -> bool:
        """In this process, or in the one that it was forked from."""
        return self._process > 0

    def listen(self) -> None:
        """From now on, in this process; a data worker that inherits the handlers ignores them and ends with us."""
        self.deferred, self.received, self._interrupts, self._process = False, 0, 0, os.getpid()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._receive)

    def stop_listening(self) -> None:
        self._process = 0
        for number in SIGNALS:
            if signal.getsignal(number) == self._receive:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._process:
            return
        self._interrupts += number == signal.SIGINT
        self.received = number if number == signal.SIGUSR1 else self.received or number
        if self._interrupts > 1 or not self.deferred:
            raise Preempted(number)


STOP_SIGNALS = StopSignals()


def requeue(number: int, is_found_again: bool) -> str | None:
    """Puts this SLURM job back into the queue, if that is what SIGUSR1 has warned of, and if it will find its run directory
    again. Says what was done.

    Under SIGTERM it is SLURM that decides: a cancelled job would come back to life.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or number != signal.SIGUSR1:
        return None
    if not is_found_again:
        return f"SLURM job {job} was not requeued: it would begin anew, in another directory; give hydra.run.dir"
    task = os.environ.get("SLURM_ARRAY_JOB_ID")
    name = f"{task}_{os.environ['SLURM_ARRAY_TASK_ID']}" if task else job
    try:
        done = subprocess.run(["scontrol", "requeue", name], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"SLURM job {name} was not requeued: {error}"
    return (
        f"SLURM job {name} is requeued" if done.returncode == 0 else f"SLURM job {name} was not requeued: {done.stderr.strip()}"
    )
