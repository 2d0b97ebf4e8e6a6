"""Checkouts of the working tree, for programs that change their own repository."""

import subprocess
from pathlib import Path

from commands import ROOT


def checkout(folder: Path) -> Path:
    """The working tree as it is, committed, in a folder that is empty or not there yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *arguments], cwd=folder, check=True)
    return folder
