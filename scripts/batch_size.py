"""Find the largest batch that fits in the memory of one GPU, by Lightning's batch size finder.

    lockstep batch_size [any overrides of train.py]
    lockstep batch_size model=resnet50 trainer.precision=bf16-mixed

Each size makes three optimizer steps: 16 samples, twice as many until memory runs out, then by bisection. 5% are then taken off.
"""

import lockstep.launchers.stop_at_once  # noqa: F401

# isort: split
import tempfile

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.config.overrides import quote
from lockstep.runs.composition import compose
from lockstep.runs.validation import check_single, validated


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value")
    given = parser.parse_args()
    check_single(given.overrides)
    with tempfile.TemporaryDirectory(prefix="lockstep-batch-") as folder:
        cfg, plan = validated(compose(f"run_dir={quote(folder)}", *given.overrides))
        from lockstep.tuning import find_batch_size

        size = find_batch_size(cfg, plan)
    print(f"\nThe largest batch that fits: datamodule.batch_size={size}")


if __name__ == "__main__":
    start(main)
