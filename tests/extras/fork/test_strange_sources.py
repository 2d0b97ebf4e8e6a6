"""What a stranger's directory says is not forked, nor trusted; tests/unit/test_strangers.py has what it may not say."""

from pathlib import Path

import pytest
from crafted import COMMAND_LINES, command_line

from lockstep.config.targets import source_directory
from lockstep.errors import ConfigError
from lockstep.runs.composition import compose
from lockstep.runs.events import command_to_begin
from lockstep.runs.identity import Identity


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stranger's directory that has come into the logs/ of a project, where a user works."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    folder = tmp_path / "logs" / "stranger"
    (folder / "conf").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("how", COMMAND_LINES)
def test_a_run_that_says_so_is_not_forked(how: str, stranger: Path) -> None:
    Identity("its id", *command_line(how, stranger), None).write(stranger)
    with pytest.raises(ConfigError) as refused:
        command_to_begin([f"fork={stranger}"])
    assert "\n" not in str(refused.value)
    assert str(stranger) in str(refused.value)


def test_what_a_fork_names_is_trusted_as_what_its_source_names(stranger: Path) -> None:
    cfg = compose("allow=[]", f"fork='{stranger}/checkpoints/last.ckpt@3'")
    assert source_directory(cfg) == stranger
