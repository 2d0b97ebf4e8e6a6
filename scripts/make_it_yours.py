"""Gives the package your name:  python scripts/make_it_yours.py my_project

`lockstep` becomes that name in every file of the repository and in the names of files. Run it once, on a clean checkout.
"""

import argparse
import subprocess
import sys
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLD = "lockstep"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python scripts/make_it_yours.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="of the Python package")
    name = parser.parse_args().name
    if not name.isidentifier() or not name.islower() or iskeyword(name) or find_spec(name) is not None:
        parser.error(f"name={name}: accepted is a lower-case Python identifier that no installed package has")
    if _run("git", "status", "--porcelain"):
        parser.error("the checkout has uncommitted changes; commit them first, so that you can see what this does")
    for path in map(Path, _run("git", "ls-files").splitlines()):
        _rename(path, name)
    for folder in sorted((ROOT / "src").rglob(OLD), reverse=True):
        folder.rename(folder.with_name(name))
    if find_spec("ruff") is not None:  # imports are sorted by name
        _run(sys.executable, "-m", "ruff", "check", "--quiet", "--select", "I", "--fix", ".")
        _run(sys.executable, "-m", "ruff", "format", "--quiet", ".")
    (ROOT / ".venv" / "installed").unlink(missing_ok=True)  # make installs the package anew, under its name
    print(f"The package is src/{name}. Next: make test")


def _rename(path: Path, name: str) -> None:
    """In a file's content, if it is text, and in its own name; folders follow."""
    file = ROOT / path
    if file.is_symlink() or not file.is_file():
        return
    try:
        text = file.read_text()
    except UnicodeDecodeError:
        return
    if OLD in text:
        file.write_text(text.replace(OLD, name))
    if OLD in file.name:
        file.rename(file.with_name(file.name.replace(OLD, name)))


def _run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


if __name__ == "__main__":
    main()
