"""The command line's words for what Hydra could not apply."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from commands import ROOT
from hydra.errors import HydraException
from omegaconf import DictConfig

from lockstep.cli import start
from lockstep.config import hydra_errors
from lockstep.config.hydra_errors import explain
from lockstep.errors import config_error
from lockstep.launchers.environment import ERROR_DIR, PARENT_PIPE, SWEPT_KEYS, this_rank
from lockstep.launchers.stop_signals import Preempted
from lockstep.runs.directory import OWN_DIRECTORY

pytestmark = pytest.mark.usefixtures("no_process_group")  # a rank that has one leaves at once

MODELS, OPTIMIZERS = (
    sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml")) for group in ("model", "model/optimizer")
)


def explained(override: str, compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", ["train.py", override])
    with pytest.raises(Exception) as refused:  # noqa: PT011  whatever Hydra raises, start() catches the two bases of it
        compose(override)
    return explain(refused.value) or ""


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "model.optimizer.lrr=1",
            "model.optimizer.lrr=1: unknown key; did you mean model.optimizer.lr? accepted are "
            "_target_, _partial_, lr, betas, weight_decay, fused; +model.optimizer.lrr=1 adds a new one",
        ),
        ("sede=1", "sede=1: unknown key; did you mean seed? accepted are "),
        ("xyzzy=1", "xyzzy=1: unknown key; accepted are the "),
        ("trainer.device=2", "trainer.device=2: unknown key; did you mean trainer.devices? accepted are the "),
        ("devices=2", "devices=2: unknown key; did you mean trainer.devices? accepted are the "),
        ("trainer.gpus=2", "trainer.gpus=2: unknown key; did you mean trainer.devices? accepted are the "),
        ("data=mnist", "data=mnist: unknown key; did you mean datamodule? accepted are the "),
        ("epochs=2", "epochs=2: unknown key; did you mean trainer.max_epochs? accepted are the "),
        ("batch_size=2", "batch_size=2: unknown key; did you mean datamodule.batch_size? accepted are the "),
        (
            "trainer.max_epoch=2",
            "trainer.max_epoch=2: unknown key; did you mean trainer.max_epochs, trainer.max_steps? accepted are",
        ),
        (
            "model.optimiser.lr=1",
            "model.optimiser.lr=1: unknown key; did you mean model.optimizer.lr? accepted are ",
        ),
    ],
)
def test_an_unknown_key_is_one_line_with_the_keys_there_are(
    override: str, message: str, compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = explained(override, compose, monkeypatch)
    assert line.startswith(message)
    assert line.endswith(f"; +{override} adds a new one")
    assert "\n" not in line
    assert len(line) < 250


@pytest.mark.parametrize("override", ["datamodule.curriculum=linear", "trainer.plan=mlp"])
def test_a_dot_for_a_slash_is_told(override: str, compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of which nothing is chosen is no key of the config."""
    accepted = override.replace(".", "/")
    assert explained(override, compose, monkeypatch) == f"{override}: a group of values; accepted is {accepted}"


def test_many_keys_are_left_to_be_printed(compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    for override, option in (("trainer.xyz=1", "--cfg job -p trainer"), ("xyz=1", "--cfg job")):
        line = explained(override, compose, monkeypatch)
        keys = rf"accepted are the \d\d keys that `{option}` in its place prints"
        assert re.fullmatch(rf"{override}: unknown key; {keys}; \+{override} adds a new one", line)


def test_the_keys_of_hydra_are_not_offered(compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hydra_errors, "_MANY", 100)
    line = explained("sede=1", compose, monkeypatch)
    accepted = line.partition("accepted are ")[2].partition(";")[0].split(", ")
    assert {"model", "datamodule", "trainer", "seed", "run_dir"} <= set(accepted)
    assert "hydra" not in accepted


@pytest.mark.parametrize(
    ("override", "options"),
    [
        ("model=transformer", MODELS),
        ("model/optimizer=lion", OPTIMIZERS),
    ],
)
def test_a_missing_option_is_one_line_with_the_options_there_are(
    override: str, options: list[str], compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert explained(override, compose, monkeypatch) == f"{override}: accepted is one of {', '.join(options)}"


def test_a_file_that_extends_what_is_not_there_is_named_with_the_options_there_are(
    tmp_path: Path, compose: Callable[..., DictConfig]
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("defaults: [clasifier]\n")
    with pytest.raises(HydraException) as raised:
        compose(f"hydra.searchpath=[file://{tmp_path}]", "model=mine")
    options = ", ".join(sorted([*MODELS, "mine"]))
    assert explain(raised.value) == f"model/mine.yaml: its defaults name clasifier; accepted is one of {options}"


@pytest.mark.parametrize("override", ["seed", "model.optimizer.lr=[1", "trainer.devices={a", "run_dir=it's", "a b=1"])
def test_what_is_not_an_override_is_named(
    override: str, compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = explained(override, compose, monkeypatch)
    assert line.startswith(f"{override}: not a valid override (")


@pytest.fixture
def _full_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # start() sets it; so it is taken back
    OWN_DIRECTORY.leave()  # what an earlier test has begun in this process


@pytest.mark.usefixtures("_full_errors")
@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("model=transformer", "model=transformer: accepted is one of "),
        ("sede=1", "sede=1: unknown key; did you mean seed?"),
        ("seed=[", "seed=[: not a valid override ("),
        ("seed=${no.such.key}", "seed: Interpolation key 'no.such.key' not found"),
    ],
)
def test_an_override_that_can_not_be_applied_ends_with_one_line_and_code_2(
    override: str,
    line: str,
    compose: Callable[..., DictConfig],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", override])
    with pytest.raises(SystemExit) as ended:
        start(lambda: compose(override).seed)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.err.startswith(line)
    assert said.err.count("\n") == 1
    assert said.out == ""


@pytest.mark.usefixtures("_full_errors")
def test_a_refusal_ends_with_its_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise config_error("seed", -1, "accepted is an integer of at least 0")

    with pytest.raises(SystemExit) as ended:
        start(main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "seed=-1: accepted is an integer of at least 0\n"


@pytest.mark.usefixtures("_full_errors")
@pytest.mark.parametrize("becomes_another", [False, True])
def test_ctrl_c_before_a_run_has_begun_is_a_line(
    becomes_another: bool, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))

    def main() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            if becomes_another:
                raise UnboundLocalError

    with pytest.raises(SystemExit) as ended:
        start(main)
    assert (ended.value.code, capsys.readouterr().err) == (130, "Interrupted.\n")
    signal.raise_signal(signal.SIGINT)  # a second one does not break off how the process ends


@pytest.mark.usefixtures("_full_errors")
@pytest.mark.parametrize("swallowed", [False, True])
def test_a_request_to_stop_before_a_run_has_begun_leaves_nothing(
    swallowed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a library makes another error of what has been raised in it."""
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def main() -> None:
        OWN_DIRECTORY.take(tmp_path / "logs" / "run", "hydra.run.dir")
        try:
            signal.raise_signal(signal.SIGTERM)
        except Preempted:
            if swallowed:
                raise ImportError("no array") from None
            raise

    with pytest.raises(SystemExit) as ended:
        start(main)
    assert (ended.value.code, capsys.readouterr().err) == (75, "Stopped by SIGTERM. The same command starts it.\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_full_errors")
def test_what_has_begun_stays_when_it_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def main() -> None:
        OWN_DIRECTORY.take(tmp_path / "run", "hydra.run.dir")
        OWN_DIRECTORY.has_begun = True
        signal.raise_signal(signal.SIGTERM)

    try:
        with pytest.raises(SystemExit) as ended:
            start(main)
    finally:
        OWN_DIRECTORY.leave()
    assert (ended.value.code, capsys.readouterr().err) == (75, f"Stopped by SIGTERM. Continue it in {tmp_path}/run.\n")
    assert (tmp_path / "run" / "lock").is_file()


@pytest.mark.usefixtures("_full_errors")
def test_a_working_directory_that_is_gone_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SystemExit) as ended:
        start(lambda: None)
    line = "The working directory is gone (No such file or directory); accepted is one that is there\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, line)


@pytest.mark.usefixtures("_full_errors")
@pytest.mark.parametrize("name", ["LOCKSTEP_PARENT_PIPE", "LOCKSTEP_SWEEP_PIPE"])
@pytest.mark.parametrize("value", ["x", "-1", "77777", "99999999999999999999", "FILE"])
def test_what_an_ended_run_has_left_in_the_environment_is_named(
    name: str, value: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as file:  # noqa: PTH123  no pipe
        value = str(file.fileno()) if value == "FILE" else value
        monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            start(lambda: None)
    line = f"{name}={value}: is left over from a run that has ended; accepted is an environment without it\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, line)


@pytest.mark.usefixtures("_full_errors")
def test_a_rank_that_fails_before_its_run_tells_its_parent_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {PARENT_PIPE: "5", ERROR_DIR: tmp_path, "RANK": 1, "LOCAL_RANK": 1, "WORLD_SIZE": 2}.items():
        monkeypatch.setenv(variable, str(value))
    monkeypatch.setattr("lockstep.cli.attach_to_parent", lambda: None)
    this_rank.cache_clear()

    def main() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    try:
        with pytest.raises(SystemExit) as ended:
            start(main)
    finally:
        this_rank.cache_clear()
    assert ended.value.code == 1
    assert json.loads((tmp_path / "rank1.json").read_text())["reason"] == "rank 1: OSError: [Errno 24] Too many open files"


def test_a_request_to_stop_before_the_program_has_its_modules_ends_it_at_once() -> None:
    text = "import lockstep.launchers.begin as first, os, signal, sys\nassert 'lockstep.cli' not in sys.modules\n"
    text += "signal.raise_signal(signal.SIGTERM)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (75, "Stopped before anything had begun. The same command starts it.\n")
    lines = (ROOT / "train.py").read_text().splitlines()
    assert next(line for line in lines if line.startswith(("import ", "from "))).startswith("import lockstep.launchers.begin")


@pytest.mark.parametrize(
    ("left", "end", "code"), [("threading.Thread(target=wait).start()", "0", 0), ("atexit.register(wait)", "sys.exit(1)", 1)]
)
def test_a_job_whose_process_does_not_end_by_itself_is_ended_with_its_own_code(
    left: str, end: str, code: int, tmp_path: Path
) -> None:
    """It kept its place in the sweep for ever, with its record written."""
    text = "import atexit, sys, threading, time\nfrom lockstep import cli\ncli.LEAVING = 1.0\ndef wait(): time.sleep(300)\n"
    text += f"def main():\n    {left}\n    {end}\ncli.start(main)"
    environment = os.environ | {SWEPT_KEYS: "seed"}
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == code
    assert f"no progress for 1 s, after all was done (code {code})" in done.stderr
    assert "in wait" in done.stderr


@pytest.mark.usefixtures("_full_errors")
def test_a_bug_is_not_hidden() -> None:
    def main() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        start(main)


@pytest.mark.usefixtures("_full_errors")
@pytest.mark.parametrize("override", ["model=5", "trainer=null", "callbacks=null", "=3"])
def test_a_group_that_is_no_option_ends_with_code_2(override: str, compose: Callable[..., DictConfig]) -> None:
    with pytest.raises(SystemExit) as ended:
        start(lambda: compose(override))
    assert ended.value.code == 2


def test_a_bug_is_not_explained_away() -> None:
    assert explain(ValueError("something else")) is None


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("model=5", "model=5: Config group override must be a string or a list. Got int; accepted is"),
        (
            "model/optimizer=null",
            "model/optimizer=null: Config group override must be a string or a list. Got NoneType; acc",
        ),
        ("model.metrics.foo=3", "model.metrics.foo=3: accepted in a list is a number, not foo"),
        (
            "datamodule.folds.crop=4",
            "datamodule.folds.crop=4: datamodule.folds has no values of its own to change; acc",
        ),
        ("seed.foo=3", "seed.foo=3: seed has no values of its own to change; accepted is seed=..., or +seed.foo=3"),
        ("hydra.launcher.jobs=x", "hydra.launcher.jobs=x: Value 'x' of type 'str' could not be converted to Integer"),
        ("+seed=3", "+seed=3: Could not append to config. An item is already at 'seed'. Either remove + prefix: 'seed=3'"),
    ],
)
def test_what_hydra_leaves_unsaid(
    override: str, line: str, compose: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert explained(override, compose, monkeypatch).startswith(line)


@pytest.mark.parametrize("full_error", ["0", "1", ""])
def test_what_hydra_can_not_write_is_one_line(
    full_error: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment says of Hydra's errors: with anything but 1 it prints a traceback and leaves with 1."""

    def main() -> None:
        assert os.environ["HYDRA_FULL_ERROR"] == "1"
        raise OSError(errno.ENOSPC, "No space left on device", "run/.hydra/config.yaml")

    monkeypatch.setenv("HYDRA_FULL_ERROR", full_error)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    with pytest.raises(SystemExit) as ended:
        start(main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "run/.hydra/config.yaml: No space left on device\n"


@pytest.mark.usefixtures("_full_errors")
def test_a_file_that_can_not_be_written_is_said_to_be_where_this_command_writes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep's directory was called hydra.run.dir."""
    monkeypatch.setattr(OWN_DIRECTORY, "path", Path("sweep"))

    def write() -> None:
        raise OSError(errno.EFBIG, "File too large")

    with pytest.raises(SystemExit):
        start(write)
    assert capsys.readouterr().err == "sweep: File too large\n"
