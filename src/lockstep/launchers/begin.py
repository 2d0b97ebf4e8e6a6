"""Imported before anything else by the programs that a person calls: until it answers requests to stop, one ends it at once; and
whom conf/launchers.yaml names may run the command in another process, as long as nothing of it has been done."""

import sys
from pkgutil import resolve_name

import lockstep.launchers.stop_at_once  # noqa: F401
from lockstep.places import read_settings


def hand_over() -> None:
    """Returns where this process is to run the command itself."""
    if (name := read_settings().get("handover")) is not None:
        resolve_name(name)()


if all(name.startswith("__") for name in vars(sys.modules["__main__"])):  # the program's first statement
    hand_over()
