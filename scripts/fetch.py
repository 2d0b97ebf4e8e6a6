"""Brings the copy of a run that `mirror=URL` has made to this machine.

    python scripts/fetch.py s3://bucket/prefix/logs/NAME/RUN           # to logs/NAME/RUN
    python scripts/fetch.py s3://bucket/prefix/logs/NAME/RUN --to DIRECTORY

A directory that is as new as its copy is left as it is; an older one is moved to DIRECTORY.before-1.
"""

from pathlib import Path

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.extras.mirror.fetch import bring, directory_for
from lockstep.runs.directory import absolute


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("url", metavar="URL", help="of a run; its mirror.json says it")
    parser.add_argument("--to", type=Path, metavar="DIRECTORY")
    arguments = parser.parse_args()
    directory = absolute(arguments.to or directory_for(arguments.url))
    bring(arguments.url, directory)
    print(directory)


if __name__ == "__main__":
    start(main)
