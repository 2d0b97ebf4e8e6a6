"""Fixtures and settings that all tests share."""

import functools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from omegaconf import DictConfig

ROOT = Path(__file__).parents[1]
FOLDERS = [*(ROOT / "tests" / "support").iterdir(), *(ROOT / "tests" / "options").iterdir()]  # modules of tests
FOLDERS += [ROOT / folder for folder in ("scripts", "benchmarks", "docs", "src")]
sys.path[:0] = map(str, FOLDERS)
os.environ["PYTHONPATH"] = os.pathsep.join(map(str, FOLDERS))  # for fork servers: 3.11 gives them no sys.path

# found on the path that has just been set
from forked import PRELOADED  # noqa: E402

from lockstep.launchers.environment import this_rank  # noqa: E402
from lockstep.launchers.heartbeat import HEARTBEAT  # noqa: E402
from lockstep.launchers.rank import leave_process_group  # noqa: E402
from lockstep.launchers.stop_signals import STOP_SIGNALS  # noqa: E402

TESTS = ROOT / "tests"
CONTRACT = [TESTS / line for line in (TESTS / "contract.txt").read_text().splitlines() if not line.startswith("#")]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slurm: needs SLURM installed, and root")
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:  # as under nohup, and in a shell's background; runs respect that
            signal.signal(number, handler)
    if not any("gpu" in Path(argument).parts for argument in config.args):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what auto finds, and what a process may fork, is then the same on every machine
    # The one server of this process, whoever starts it, imports once and then forks: see forked.py. That of runs would block
    # signals and end with code 0 in what tests fork from it, if a test that launches ranks came first.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    context.set_forkserver_preload = lambda _: None
    # Lightning warns so on any machine that has SLURM.
    config.addinivalue_line("filterwarnings", "ignore:The `srun` command is available on your system")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if missing := [str(path) for path in CONTRACT if not path.exists()]:
        raise pytest.UsageError(f"tests/contract.txt: there is no {missing[0]}")
    for item in items:
        if not {item.path, *item.path.parents}.isdisjoint(CONTRACT):
            item.add_marker("contract")


@pytest.fixture
def no_process_group() -> None:
    """Ends the process group that a training in this process has left: Lightning keeps it for the next one."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """A run listens until its process ends, and a strategy keeps its process group; this process goes on. seed_everything leaves
    variables behind, and so does a test that has become a rank."""
    before = dict(os.environ)
    yield
    STOP_SIGNALS.stop_listening()
    HEARTBEAT.stop()
    leave_process_group()
    os.environ.clear()
    os.environ.update(before)
    this_rank.cache_clear()  # of these variables


@pytest.fixture(scope="session")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., DictConfig]:
    """Composes conf/train.yaml with overrides; see support/models/in_process.py."""
    from in_process import composed  # which imports torch

    return functools.partial(composed, run_dir=tmp_path_factory.getbasetemp() / "run")


@pytest.fixture
def shipped(compose: Callable[..., DictConfig]) -> DictConfig:
    """The config as it is shipped, to be changed."""
    return compose()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], None]]:
    """Makes this process one that was started with these variables, and no others of a launcher."""
    for name in os.environ:
        if name.startswith(("SLURM_", "TORCHELASTIC_", "LOCKSTEP_")):
            monkeypatch.delenv(name)

    def start(env: dict[str, str]) -> None:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        this_rank.cache_clear()

    this_rank.cache_clear()
    yield start
    this_rank.cache_clear()
