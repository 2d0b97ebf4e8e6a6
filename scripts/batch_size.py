"""Find the largest batch that fits in the memory of one device, by short trainings.

    lockstep batch_size [any overrides of train.py]
    lockstep batch_size model=resnet50 trainer.precision=bf16-mixed

Each size makes three optimizer steps and a validation batch, in this one process: 16 samples, twice as many until memory runs out
or an epoch is one batch, then by bisection, to one part in 16. 10% of a GPU's memory stay free.
"""

import lockstep.launchers.stop_at_once  # noqa: F401

# isort: split
import logging
import tempfile

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.config.overrides import check_single, quote
from lockstep.runs.composition import compose
from lockstep.runs.validation import validated


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value")
    parser.add_argument("--memory", type=float, metavar="GIB", help="beyond what the process takes at its start; a CPU needs it")
    given = parser.parse_args()
    check_single(given.overrides)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="lockstep-batch-") as folder:
        cfg, plan = validated(compose(f"run_dir={quote(folder)}", *given.overrides))
        from lockstep.extras.batch_size.batch_size import find_batch_size

        size = find_batch_size(cfg, plan, given.memory)
    print(f"\nThe largest batch that fits: datamodule.batch_size={size}")


if __name__ == "__main__":
    start(main)
