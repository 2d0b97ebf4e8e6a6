"""Compare N processes with one: train the composed experiment on both, step by step.

    lockstep parity trainer.devices=4 [any overrides of train.py]
    lockstep parity trainer.devices=2 model=cnn parity.steps=50

Both take the same global batches and the same initial weights, one training after the other. Compared are samples, learning
rates, every gradient, weights and buffers before each step, and the metrics. Where the sides differ, the causes that
may be to blame are switched off on both, one by one, and named if that helps.

    parity.steps=20            optimizer steps
    parity.precision=64-true   of both sides; run: the run's own trainer.precision
    parity.timeout=120         seconds in which a process makes no step, until it counts as hung, and the stacks are shown

Exit codes: 0 equal, 3 not equal, 1 a side failed or ended before these steps, 2 can't be compared as configured.
Nothing is left on disk.
"""

import lockstep.launchers.stop_at_once  # noqa: F401

# isort: split
import logging
import signal
import sys
from functools import partial

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.console import say
from lockstep.errors import ExitCode, NamedFailure
from lockstep.parity.trainings import SideFailed
from lockstep.parity.verdict import parity
from lockstep.runs.composition import compose
from lockstep.runs.validation import check_single


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value")
    overrides = parser.parse_args().overrides
    check_single(overrides)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # on the way what is temporary is removed
    progress = logging.getLogger("lockstep.parity")
    progress.setLevel(logging.INFO)
    progress.addHandler(logging.StreamHandler())
    try:
        equal = parity(compose(*overrides, config_name="parity"), say=partial(print, flush=True))
    except NamedFailure as failure:
        say(f"No verdict: {failure}")
        sys.exit(ExitCode.FAILED)
    except SideFailed as failure:
        print(failure.traceback, file=sys.stderr)
        say(f"The comparison failed: {failure}")
        sys.exit(ExitCode.FAILED)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(ExitCode.FINISHED if equal else ExitCode.NOT_EQUAL)


if __name__ == "__main__":
    start(main)
