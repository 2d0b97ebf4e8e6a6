"""Bring the copy of a run that `mirror=URL` has made to this machine.

    lockstep fetch s3://bucket/prefix/logs/NAME/RUN logs/NAME/RUN
    python train.py resume=logs/NAME/RUN

The log of the run says the URL. RUN_DIR is a new directory.
"""

from pathlib import Path

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.mirror import fetch


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("url", metavar="URL", help="of the run's copy")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    given = parser.parse_args()
    fetch(given.url, given.run_dir)


if __name__ == "__main__":
    start(main)
