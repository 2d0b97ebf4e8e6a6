"""Ranks that mpirun has started: what their environment says, how they meet, and how nobody waits for one that has failed."""

import os
import re
import signal
import threading
from pathlib import Path

import pytest
from mpiruns import NAMES, TRAIN, mpirun, run
from waiting import wait_for

from lockstep.errors import ConfigError
from lockstep.extras.mpi import meeting
from lockstep.extras.mpi.cluster import MPICH, OpenMPI
from lockstep.extras.mpi.meeting import FOLDER, meet
from lockstep.launchers.cluster import Rank
from lockstep.launchers.environment import PARENT_PIPE, rank_in, without_rank_variables

OPENMPI = dict(zip(OpenMPI.rank_variables, ("5", "8", "1", "4"), strict=True))
HYDRA = dict(zip(MPICH.rank_variables, ("5", "8", "1", "4"), strict=True))
SBATCH = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "ENVIRONMENT": "BATCH"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("env", "rank"),
    [
        (OPENMPI, Rank("openmpi", global_rank=5, local_rank=1, world_size=8, num_nodes=2)),
        (HYDRA, Rank("mpich", 5, 1, 8, 2)),
        (OPENMPI | SBATCH, Rank("openmpi", 5, 1, 8, 2)),  # mpirun in a job of SLURM's
        (OPENMPI | TORCHRUN, Rank("torchrun", 1, 1, 2, 1)),  # a torchrun on each host
        (OPENMPI | {PARENT_PIPE: "5", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, Rank("parent", 1, 1, 2, 1)),
        (OPENMPI | {"OMPI_COMM_WORLD_SIZE": "1"}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "SLURM_JOB_ID": "77"}, None),  # srun --mpi=pmi2, with SLURM's variables for one task
    ],
)
def test_rank_of_an_environment(env: dict[str, str], rank: Rank | None) -> None:
    assert rank_in(env) == rank


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (
            OPENMPI | {"OMPI_COMM_WORLD_RANK": "x"},
            "OMPI_COMM_WORLD_RANK=x: is not a number; accepted is the environment of mpirun",
        ),
        (HYDRA | {"PMI_SIZE": "0"}, "PMI_SIZE=0: is less than 1; accepted is the environment of mpirun"),
        (
            HYDRA | {"PMI_SIZE": "9"},
            "MPI_LOCALNRANKS=4: 9 ranks are not as many on each host; accepted is as many on each of them",
        ),
    ],
)
def test_what_is_wrong_with_its_environment_is_named(env: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        rank_in(env)
    assert str(refused.value).startswith(line)


def test_what_a_rank_starts_is_none() -> None:
    assert without_rank_variables(OPENMPI | HYDRA | {"HOME": "/"}) == {"HOME": "/"}


def test_a_run_on_several_hosts_needs_a_directory_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"^hydra\.run\.dir=null: mpirun names no run on several hosts; accepted is"):
        OpenMPI().run_id(Rank("openmpi", 5, 1, 8, 2))


def test_ranks_meet_although_an_earlier_start_has_left_its_address(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    for rank in (1, 2):
        (folder / str(rank)).write_text("earlier")
    (folder / "address.json").write_text('{"host": "gone", "port": 1, "tokens": {"1": "earlier", "2": "earlier"}}')
    answers: dict[int, tuple[str, int]] = {}
    threads = [
        threading.Thread(target=lambda r=rank: answers.update({r: meet(tmp_path, r, 3, f"host{r}")})) for rank in (2, 1, 0)
    ]
    for thread in threads:
        thread.start()
        thread.join(0.2)  # rank zero comes last
    for thread in threads:
        thread.join(20)
    (address,) = {*answers.values()}
    assert len(answers) == 3
    assert address[0] == "host0"
    assert address[1] > 1


def test_ranks_that_do_not_share_the_directory_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "WITHIN", 0.1)
    for rank, who in ((0, "of 2 ranks not all have"), (1, "rank zero has not")):
        with pytest.raises(ConfigError) as refused:
            meet(tmp_path, rank, 2, "host")
        assert str(refused.value).startswith(f"hydra.run.dir={tmp_path}: {who} come to it within 0.1 s; accepted is a directory")


FAILS = """
import os, sys, time
from lockstep import cli
from lockstep.launchers.environment import this_rank

def main():
    if this_rank().global_rank == 1:
        raise {error}
    time.sleep(300)

cli.start(main)
"""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("error", "code"), [("ArithmeticError('planted')", 1), ("__import__('lockstep.errors').errors.ConfigError('no')", 2)]
)
def test_a_rank_that_fails_ends_the_others(name: str, error: str, code: int, tmp_path: Path) -> None:
    """The other one sleeps for minutes; without this MPICH would wait for it."""
    (tmp_path / "fails.py").write_text(FAILS.format(error=error))
    assert run(name, "fails.py", cwd=tmp_path)[0] == code


FOLLOWS = """
import os, time
from lockstep.launchers.environment import run_id
from lockstep.launchers.rank import attach_to_parent
attach_to_parent()
open(f"up.{os.getpid()}", "w").write(run_id() + " " + os.environ["OMP_NUM_THREADS"])
time.sleep(300)
"""


@pytest.mark.parametrize("name", NAMES)
def test_ranks_end_with_an_mpirun_that_is_killed_also_in_a_script(name: str, tmp_path: Path) -> None:
    (tmp_path / "follows.py").write_text(FOLLOWS)
    with mpirun(name, "follows.py", cwd=tmp_path, wrapped=True) as process:
        wait_for(lambda: len([*tmp_path.glob("up.*")]) == 2 and all(file.read_text() for file in tmp_path.glob("up.*")))
        process.kill()
        pids = [int(file.suffix[1:]) for file in tmp_path.glob("up.*")]
        wait_for(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids))
    (said,) = {file.read_text() for file in tmp_path.glob("up.*")}  # they agree on one run
    assert re.fullmatch(rf"{name}-.+-\d+-\d+ [1-9]\d*", said)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_rank_that_is_killed_ends_all(name: str, tmp_path: Path) -> None:
    """Rank zero sleeps outside any collective, where no broken connection wakes it."""
    faults = "+callbacks.a={_target_:faults.Fault,rank:0,how:hang}", "+callbacks.b={_target_:faults.Fault,rank:1,how:kill}"
    code, output = run(name, *TRAIN, "model=mlp", "test=false", "hydra.run.dir=run", *faults, cwd=tmp_path)
    assert code == {"openmpi": 128 + signal.SIGKILL, "mpich": signal.SIGKILL}[name], output
    assert (tmp_path / "run" / "status.json").is_file()
    assert str(os.getpid()) not in (tmp_path / "run" / "lock").read_text()
