"""The table of a running sweep, in the terminal."""

FILES = ["docs/watch.png"]
NEEDS = ["report"]
OPTIONAL_DEPENDENCIES: list[str] = []
