"""What ranks find in their environment, and what is checked of any that has started them."""

from pathlib import Path

from lockstep.launchers.environment import PARENT_PID, output_subdir, rank_log

PARENT = {PARENT_PID: "5", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
TORCHRUN |= {"GROUP_WORLD_SIZE": "1"}


def check_log_and_config(log: str, subdir: str | None, directory: Path) -> None:
    """This process has such a log, and saves the config in such a folder, in a directory that has none yet."""
    assert rank_log() == log
    assert output_subdir(None, str(directory)) == subdir
    assert output_subdir("run", str(directory)) == subdir  # continued, but nothing was saved the first time
    (directory / ".hydra").mkdir()
    (directory / ".hydra" / "config.yaml").touch()
    assert output_subdir(None, str(directory)) == subdir
    assert output_subdir("run", str(directory)) is None
