"""SLURM's commands as shell scripts on the PATH: a cluster that runs every job at once, without any SLURM.

Each job is a line of squeue's in a file of its own, in `tasks`, which a test may change; they wait while there is a file `hold`.
"""

import os
from pathlib import Path

import pytest

_SBATCH = r"""
echo "$@" >> calls
[ -f refuses ] && { cat refuses >&2; [ -f heard ] || exit 1; }
for word; do
  case $word in --job-name=*) name=${word#*=} ;; esac
  script=$word
done
say() { echo "$2" > saying.$1 && mv saying.$1 tasks/$1; } # at once: squeue must not find half of it
number=$(( $(cat number 2>/dev/null || echo 0) + 1 ))
echo $number > number
say $number "$number|$name|PENDING|Priority|"
( for fd in $(ls /proc/self/fd); do [ $fd -gt 2 ] && [ $fd -lt 255 ] && eval "exec $fd>&-"; done
  while [ -f hold ]; do sleep 0.02; done
  say $number "$number|$name|RUNNING|None|n1"
  SLURM_CPUS_PER_TASK=1 bash "$script"
  [ $? -eq 0 ] && state=COMPLETED || state=FAILED
  say $number "$number|$name|$state|None|n1"
) > /dev/null 2>&1 &
[ -f heard ] && exit 1
echo "$number;cluster"
"""
_SQUEUE = '[ -f down ] && { cat down >&2; exit 1; }; echo "9|somebody\'s|RUNNING|None|n2"; cat tasks/* 2>/dev/null; true'
_SRUN = r"""
while case $1 in --output=*) output=${1#*=} ;; --*) ;; *) false ;; esac; do shift; done
exec "$@" >> "$output" 2>&1
"""
_SCANCEL = r"""
echo "$@" >> cancelled
case "$*" in *--signal*) exit 0 ;; esac
for id; do [ -f tasks/$id ] && sed -i "s/PENDING\|RUNNING/CANCELLED/" tasks/$id; done
true
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts it first on the PATH; returns its folder."""
    place = folder / "cluster"
    (place / "tasks").mkdir(parents=True)
    commands = {"sbatch": _SBATCH, "squeue": _SQUEUE, "srun": _SRUN, "scancel": _SCANCEL}
    for name, text in commands.items():
        enter = "" if name == "srun" else f"cd {place}\n"
        (place / name).write_text(f"#!/bin/bash\n{enter}{text}\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    return place


def say(place: Path, task: str, line: str) -> None:
    """What squeue is to say of it: at once, as above."""
    (place / f"saying.{task}").write_text(line + "\n" if line else "")
    (place / f"saying.{task}").replace(place / "tasks" / task)
