"""A SLURM of a test's own on this machine: two nodes of four fake GPUs each, with its own configuration and ports.

Needs Debian's slurm-wlm (apt-get install slurm-wlm), and to be root. Nothing of the system's own SLURM is used.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "srun", "scancel", "scontrol", "sinfo")
CONF = """
ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdTimeout=300
SlurmdParameters=config_overrides
KillWait=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
ReturnToService=2
MpiDefault=none
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=64 RealMemory=1000 Gres=gpu:4
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=64 RealMemory=1000 Gres=gpu:4
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=n1,n2 MaxTime=10 State=UP
FirstJobId={first}
"""
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
MISSING = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
MARKS = [
    pytest.mark.slow,
    pytest.mark.slurm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(MISSING), reason=f"SLURM is not installed: no {', '.join(MISSING)} (Debian has it as slurm-wlm)"),
    pytest.mark.skipif(os.geteuid() != 0, reason="SLURM's daemons are started by root"),
]


class Cluster:
    """`environment` is what its commands need to find it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self.folder.chmod(0o755)
        (self.folder / "state").mkdir()
        ports = _free_ports(3)
        first = 100 + ports[0] % 9800  # ranks meet at a port that is made of the job's number, and there may be another cluster
        conf = CONF.format(ports=ports, first=first, host=socket.gethostname(), folder=self.folder)
        (self.folder / "slurm.conf").write_text(conf)
        (self.folder / "gres.conf").write_text(f"NodeName=n1,n2 Name=gpu File={self.folder}/gpu[0-3]")
        for number in range(4):
            subprocess.run(["mknod", self.folder / f"gpu{number}", "c", "1", "3"], check=True)  # as /dev/null
        self._run("slurmctld", "slurmctld", "-D", "-c")
        self.start_node("n1")
        self.start_node("n2")
        wait_for(lambda: self.states() == ["idle", "idle"], pause=0.2)

    def start_node(self, name: str) -> None:
        self._run(name, "slurmd", "-D", "-N", name)

    def _run(self, name: str, program: str, *options: str) -> None:
        command, env = [str(shutil.which(program, path=PATH)), *options], os.environ | self.environment
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)

    def ask(self, *command: str, cwd: Path | None = None, **env: str) -> str:
        """Return what a command of SLURM's says, nothing if it fails."""
        options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 30, "check": False, "cwd": cwd}
        done = subprocess.run(command, env=os.environ | self.environment | env, **options)
        return done.stdout if done.returncode == 0 else ""

    def states(self) -> list[str]:
        return self.ask("sinfo", "--Node", "--partition=main", "--noheader", "--format=%T").split()

    def is_idle(self) -> bool:
        """True if a job could have both nodes. A node is drained if proctrack/linuxproc saw no end of a step's processes;
        it is then given back, as an administrator would."""
        states = self.states()
        for number, state in enumerate(states, 1):
            if state == "drained":
                self.ask("scontrol", "update", f"nodename=n{number}", "state=resume")
        return states == ["idle", "idle"]

    def tasks(self) -> list[list[str]]:
        """Return number, name, state and nodes of each job."""
        lines = self.ask("squeue", "--states=all", "--noheader", "--format=%A|%j|%T|%N").splitlines()
        return [line.split("|") for line in lines]

    def _processes_with(self, *more: str) -> dict[int, set[str]]:
        """Return the environments of the processes of this cluster that have these variables, by their pids."""
        result, wanted = {}, {f"SLURM_CONF={self.environment['SLURM_CONF']}", *more}
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended
                if wanted <= (variables := {*path.read_text(errors="replace").split("\0")}):
                    result[int(path.parent.name)] = variables
        return result

    def list_processes(self, job: str) -> dict[str, int]:
        """Return the pids of the tasks that srun has started in a job, by rank."""
        ranks: dict[str, int] = {}
        for pid, variables in self._processes_with(f"SLURM_JOB_ID={job}", "SLURM_STEP_ID=0").items():
            if "python" in _read(pid, "cmdline").partition("\0")[0]:
                rank = next(item.partition("=")[2] for item in variables if item.startswith("SLURM_PROCID="))
                ranks[rank] = min(pid, ranks.get(rank, pid))  # not one that the task has started
        return ranks

    def watches_over(self, job: str) -> bool:
        """Return whether a slurmstepd of the job lives. It reports how the job's script ended, which SLURM takes for the end of
        the next life where that has begun already: that is why it lets a requeued job wait."""
        return any(_read(pid, "cmdline").startswith(f"slurmstepd: [{job}.") for pid in self._processes_with())

    def kill_node(self, name: str) -> None:
        """Kill a node with all that runs on it, at once."""
        slurmd = self._daemons.pop(name)
        slurmd.kill()
        self._kill_jobs(name)
        slurmd.wait()
        for path in (self.folder / name).glob(f"{name}_*"):  # sockets of what it was doing: a reboot leaves none either
            path.unlink()

    def _kill_jobs(self, node: str) -> None:
        """Kill the processes of the jobs on a node, after those that watch over them."""
        jobs = self._processes_with(f"SLURMD_NODENAME={node}")
        parents = {int(_read(pid, "stat").rpartition(")")[2].split()[1]) for pid in jobs if _read(pid, "stat")}
        for pid in [*(pid for pid in parents if _read(pid, "cmdline").startswith("slurmstepd")), *jobs]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End everything that it has started, jobs first."""
        self.ask("scancel", "--user=root")
        for process in reversed(self._daemons.values()):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for node in ("n1", "n2"):
            self._kill_jobs(node)


def cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # sockets have short names
    one = Cluster(folder)
    try:
        one.start()
        yield one
    finally:
        one.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _read(pid: int, name: str) -> str:
    """Return what /proc says of a process, nothing if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    return ""
