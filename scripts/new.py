"""Write a project of your own, fifteen files whose engine is this package.

    lockstep new PATH                    # its Python package is named after the folder
    lockstep new PATH --model text       # image (the default), text, or lightning: a plain LightningModule
    lockstep new --update PATH           # the files as this version writes them

An update leaves the files that you have changed or deleted as they are, and names those of them that it would have written.

Exit codes: 0, or 2 where PATH is no place for a project or has none.
"""

from pathlib import Path

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.new_project import create, update


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("path", type=Path, metavar="PATH")
    parser.add_argument("--model", default="image", help="image, text or lightning")
    parser.add_argument("--update", action="store_true")
    given = parser.parse_args()
    if given.update:
        written, kept = update(given.path)
        lines = [f"written: {file}" for file in written] or ["Nothing to write."]
        print("\n".join(lines + [f"kept, for you have changed it: {file}" for file in kept]))
    else:
        create(given.path, given.model)
        print(f"{given.path} is a project that trains. Next:\n  cd {given.path}\n  make train\n  make test")


if __name__ == "__main__":
    start(main)
