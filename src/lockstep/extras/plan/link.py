"""Latency and bandwidth of the link, which timings of two counts of devices do not tell apart: an all-reduce over n devices sends
2(n-1) messages, and 2(n-1)/n times the gradients' bytes (lockstep.extras.report.step_model)."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lockstep import console
from lockstep.extras.report.analysis import read_all_reduce
from lockstep.places import HOME

MEASURE = "measure"
FILE = "all_reduce.json"  # in the sweep's directory
_SECONDS = 3  # of each count of processes
_LONGEST = 300  # seconds, with the processes' start


def measured_link(directory: Path, counts: Sequence[int], backend: str) -> dict[str, float]:
    """By scripts/allreduce.py, over those counts of processes of this machine; from its file where it has run before. Nothing
    where it fails, which is said."""
    file = directory / FILE
    if not file.is_file():
        processes = [str(count) for count in counts if count > 1]
        command = [sys.executable, str(HOME / "scripts" / "allreduce.py"), "--processes", *processes, "--backend", backend]
        command += ["--seconds", str(_SECONDS), "--json", str(file)]
        try:
            subprocess.run(command, stdout=subprocess.DEVNULL, timeout=_LONGEST, check=True)
        except (subprocess.SubprocessError, OSError) as error:
            console.say(f"plan: the all-reduce can't be measured apart ({error}); more devices are predicted from timings alone")
            return {}
    return read_all_reduce(file)
