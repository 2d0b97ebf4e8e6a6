"""Paths of Lockstep's configs and scripts, and of the project that this command is about."""

import sys
from pathlib import Path

SHIPPED = Path(__file__).with_name("shipped")  # in a wheel; see setup.py
HOME = SHIPPED if SHIPPED.is_dir() else Path(__file__).resolve().parents[2]  # else the checkout
CONF = HOME / "conf"


def project() -> Path:
    """Return the folder of train.py and conf/: the program's own, else the working directory, else HOME."""
    return next((folder.absolute() for folder in (Path(sys.argv[0]).parent, Path()) if is_project(folder)), HOME)


def is_project(folder: Path) -> bool:
    return (folder / "train.py").is_file() and (folder / "conf").is_dir()


def import_from_project() -> None:
    """Make modules of the project's src/, be it installed or not, and beside its train.py importable, in scripts too."""
    for folder in (project(), project() / "src"):
        if str(folder) not in sys.path:
            sys.path.insert(1, str(folder))  # behind the program's own folder
