"""One process of a try, started as `python try_batch.py PROGRAM CONFIG`: a few steps of the run of that config, as PROGRAM's."""

import lockstep.launchers.stop_at_once  # noqa: F401

# isort: split
import sys
from functools import partial
from pathlib import Path


def main() -> None:
    """PROGRAM's folder is where it imports from, and whose project it belongs to."""
    program, file = sys.argv[1:]
    sys.argv, sys.path[0] = [program], str(Path(program).parent)
    from lockstep.cli import start
    from lockstep.extras.batch_size.batch_size import try_batch

    start(partial(try_batch, Path(file)))


if __name__ == "__main__":
    main()
