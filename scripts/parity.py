"""Is the training of N processes that of one? Trains the composed experiment on both and compares them step by step.

    python scripts/parity.py trainer.devices=4 [any overrides of train.py]
    python scripts/parity.py trainer.devices=2 model=cnn parity.steps=20
    python scripts/parity.py trainer.devices=2 trainer.precision=bf16-mixed parity.against="trainer.precision=32-true"

Both take the same global batches, the same samples in the same order and the same initial weights. Each step is made from
identical state. Compared are samples, learning rates, the loss, every gradient, the metrics that an epoch of training, a
validation and a test log, and the samples of these, as max|a-b| over the largest |a| that this tensor has had; and every
buffer, entry by entry, as the module's own hooks leave it. Tolerated is 1e-10 in float64 (or ten times what a control shows
for the same tensor, up to 1e-8; 1e-5 for numbers that are held in float32), 1e-3 in float32, 0.1 in 16 bits. If all steps are
equal, both train freely, and the weights and buffers they end with may differ by ten times as much as the control's: the
reference with each batch permuted, the larger of two permutations, or of three if these are not enough. In float64 with SGD by
1e-12 at most. If the loss of the permuted batches is another one (time as the first axis, state kept from batch to batch) noise
of a few last places in the reference's gradients is the control.

Where they differ the causes that may be to blame are switched off, one by one, and named if that helps; then what is left is
looked at in the same way. What the verdict does not rest on is listed beside it, and up to which step it holds. Never
compared are optimizer states (they show in the weights), what is logged at single steps, and state of a model that is
neither a parameter nor a buffer.

    parity.steps=50            optimizer steps
    parity.precision=64-true   of both sides; run: the run's own trainer.precision
    parity.against=one         what the run is compared with, its reference:
                               one              one process; accumulated batches in one, where no state changes with each
                               ddp              as many processes under DDP with torch's own settings
                               "KEY=VALUE ..."  the run itself with these overrides: another precision, strategy, number of
                                                devices. If trainer.precision is among them each side keeps its own precision
    parity.tolerance=0         of every difference, without a control; null: as above, but 0 with trainer.exact, in the run's own
                               precision: the same bits
    parity.timeout=120         seconds in which a process makes no step, until it counts as hung, and the stacks are shown

Exit codes: 0 equal, 3 not equal, 1 a side failed or ended before these steps, 2 can't be compared as configured.
Nothing is left on disk.
"""

import lockstep.launchers.begin  # noqa: F401

# isort: split
import logging
import signal
import sys
from functools import partial

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.config.overrides import check_single, quote
from lockstep.console import say
from lockstep.errors import ExitCode, NamedFailure
from lockstep.extras.parity.processes import SideFailed
from lockstep.extras.parity.verdict import parity
from lockstep.runs.composition import compose


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value")
    overrides = [_quoted(override) for override in parser.parse_args().overrides]
    check_single(overrides)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # on the way what is temporary is removed
    progress = logging.getLogger("lockstep.extras.parity")
    progress.setLevel(logging.INFO)
    progress.addHandler(logging.StreamHandler())
    try:
        equal = parity(lambda more: compose(*overrides, *more, config_name="parity"), say=partial(print, flush=True))
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


def _quoted(override: str) -> str:
    """Overrides inside an override, as Hydra's grammar wants them."""
    key, _, value = override.partition("=")
    return f"{key}={quote(value)}" if key == "parity.against" and not value.startswith(("'", '"')) else override


if __name__ == "__main__":
    start(main)
