"""A SLURM of a test's own on this machine: two nodes of four fake GPUs each, with its own configuration, key and ports.

Needs Debian's slurm-wlm and munge (apt-get install slurm-wlm munge), and to be root. Nothing of the system's own SLURM is used.
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

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "srun", "scancel", "scontrol", "sinfo")
CONF = """
ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
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


_PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])


def why_not() -> str | None:
    """The reason for which there can be no such cluster here."""
    if missing := [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]:
        return f"SLURM is not installed: no {missing[0]} (Debian has it as slurm-wlm and munge)"
    return None if os.geteuid() == 0 else "SLURM's daemons are started by root"


MARKS = [
    pytest.mark.slow,
    pytest.mark.slurm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]


class Cluster:
    """`environment` is what its commands need to find it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self.folder.chmod(0o755)
        (self.folder / "state").mkdir()
        gpus = [self.folder / f"gpu{number}" for number in range(8)]
        for gpu in gpus:
            subprocess.run(["mknod", gpu, "c", "1", "3"], check=True)  # as /dev/null
        ports = _free_ports(3)
        first = 100 + ports[0] % 9800  # ranks meet at a port that is made of the job's number, and there may be another cluster
        options = {"host": socket.gethostname(), "folder": self.folder}
        text = CONF.format(ports=ports, first=first, **options)
        (self.folder / "slurm.conf").write_text(text)
        lines = [f"NodeName=n{1 + number // 4} Name=gpu File={gpu}" for number, gpu in enumerate(gpus)]
        (self.folder / "gres.conf").write_text("\n".join(lines))
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{file}" for option, file in files.items()]
        self._run("munged", "munged", "--foreground", "--force", f"--key-file={key}", *options)
        wait_for((self.folder / "munge.socket").exists)
        self._run("slurmctld", "slurmctld", "-D", "-c")
        self.start_node("n1")
        self.start_node("n2")
        wait_for(lambda: self.states() == ["idle", "idle"], pause=0.2)

    def start_node(self, name: str) -> None:
        self._run(name, "slurmd", "-D", "-N", name)

    def _run(self, name: str, *command: str) -> None:
        program = shutil.which(command[0], path=_PATH)
        assert program is not None
        with (self.folder / f"{name}.out").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                [program, *command[1:]],
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def ask(self, *command: str, cwd: Path | None = None, **env: str) -> str:
        """What a command of SLURM's says."""
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
        """Of each job: number, name, state, nodes."""
        lines = self.ask("squeue", "--states=all", "--noheader", "--format=%A|%j|%T|%N").splitlines()
        return [line.split("|") for line in lines]

    def _processes_with(self, *more: str) -> list[tuple[int, set[str]]]:
        own = f"SLURM_CONF={self.environment['SLURM_CONF']}"
        return [(pid, variables) for pid, variables in _environments() if {own, *more} <= variables]

    def list_processes(self, job: str) -> dict[str, int]:
        """The tasks that srun has started in a job, by rank."""
        result = self._processes_with(f"SLURM_JOB_ID={job}", "SLURM_STEP_ID=0")
        tasks = [(pid, variables) for pid, variables in reversed(result) if _is_task(pid)]
        return {item.partition("=")[2]: pid for pid, items in tasks for item in items if item.startswith("SLURM_PROCID=")}

    def watches_over(self, job: str) -> bool:
        """Return whether a slurmstepd of the job lives. It reports how the job's script ended, which SLURM takes for the end of
        the next life where that has begun already: that is why it lets a requeued job wait."""
        commands = [_command(pid) for pid, _ in self._processes_with()]
        return any(command.startswith(f"slurmstepd: [{job}.") for command in commands)

    def kill_node(self, name: str) -> None:
        """With all that runs on it, at once and without a word."""
        slurmd = self._processes.pop(name)
        slurmd.kill()
        self._kill_jobs(name)
        slurmd.wait()
        for path in (self.folder / name).glob(f"{name}_*"):  # sockets of what it was doing: a reboot leaves none either
            path.unlink()

    def _kill_jobs(self, node: str) -> None:
        """The processes of the jobs on a node, after those that watch over them."""
        jobs = [pid for pid, _ in self._processes_with(f"SLURMD_NODENAME={node}")]
        for pid in [*{_parent(pid) for pid in jobs if _command(_parent(pid)).startswith("slurmstepd")}, *jobs]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Everything that it has started, jobs first."""
        self.ask("scancel", "--user=root")
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for node in ("n1", "n2"):
            self._kill_jobs(node)
        self._processes.clear()


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
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _environments() -> Iterator[tuple[int, set[str]]]:
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            yield int(path.parent.name), set(path.read_text(errors="replace").split("\0"))
        except OSError:
            continue


def _command(pid: int) -> str:
    """Its command line; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _is_task(pid: int) -> bool:
    """Python, or what it calls itself when it knows its rank."""
    program = _command(pid).partition("\0")[0]
    return program.startswith("lockstep rank") or "python" in program


def _parent(pid: int) -> int:
    """0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
