"""Bring the copy of a run that `mirror=URL` has made to this machine.

    lockstep fetch s3://bucket/prefix/logs/NAME/RUN                    # to logs/NAME/RUN
    python train.py resume=logs/NAME/RUN

A directory that is as new as its copy is left as it is; an older one is to be moved first.
"""

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.extras.mirror.mirror import bring


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("url", metavar="URL", help="of a run; its mirror.json says it")
    print(bring(parser.parse_args().url))


if __name__ == "__main__":
    start(main)
