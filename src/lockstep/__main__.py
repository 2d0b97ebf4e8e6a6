"""The command `lockstep`: each of Lockstep's scripts, and of the project's, under its name."""

import argparse
import ast
import os
import sys
from pathlib import Path

from lockstep.places import HOME, is_project


def main() -> None:
    """Run `python SCRIPT ARGUMENTS` in place of this process; without a script's name, list the scripts."""
    name, *arguments = sys.argv[1:] or ["--help"]
    programs = _programs()
    if name in ("-h", "--help"):
        print(_help(programs))
    elif name in programs:
        os.execv(sys.executable, [sys.executable, str(programs[name]), *arguments])
    else:
        print(f"lockstep {name}: use {', '.join(programs)}", file=sys.stderr)
        sys.exit(2)


def run_train() -> None:
    """Run Lockstep's train.py in this process. Ranks and jobs that it starts run this process's own program."""
    program = HOME / "train.py"
    exec(compile(program.read_bytes(), program, "exec"), {"__name__": "__main__", "__file__": str(program)})


def script_parser(description: str | None, *subcommand: str) -> argparse.ArgumentParser:
    """Return a parser of a script's arguments, whose help shows the call, `lockstep NAME`."""
    called = " ".join(["lockstep", Path(sys.argv[0]).stem, *subcommand])
    return argparse.ArgumentParser(called, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def _programs() -> dict[str, Path]:
    """Map names to train.py and the scripts, sorted; the project's, in the working directory, replace Lockstep's own."""
    folders = [HOME, *([Path.cwd()] if is_project(Path()) else [])]
    scripts = {path.stem: path for folder in folders for path in sorted(folder.glob("scripts/*.py"))}
    return {"train": folders[-1] / "train.py", **dict(sorted(scripts.items()))}


def _help(programs: dict[str, Path]) -> str:
    lines = [f"  {name:<14} {_purpose(path)}" for name, path in programs.items()]
    head = ["lockstep NAME [ARGUMENT ...] runs train.py or a script; lockstep NAME --help says what it takes.", ""]
    return "\n".join([*head, *lines, "", f"Lockstep's configs are in {HOME / 'conf'}"])


def _purpose(path: Path) -> str:
    """Return the first line of the docstring without its command line."""
    docstring = ast.get_docstring(ast.parse(path.read_bytes())) or ""
    return docstring.partition("\n")[0].partition(":  ")[0]


if __name__ == "__main__":
    main()
