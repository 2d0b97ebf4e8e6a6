"""Find a learning rate by Lightning's range test: a short training whose rate rises until it diverges (Smith 2017).

    lockstep lr_range [any overrides of train.py]
    lockstep lr_range --from 1e-5 --to 3 model=resnet18 datamodule=cifar10

One device trains with the global batch of the run. The rate at which the loss falls fastest is suggested: for this batch, and for
the beginning of a training.
"""

import lockstep.launchers.stop_at_once  # noqa: F401

# isort: split
import tempfile

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.config.overrides import quote
from lockstep.config.plan import rate_key
from lockstep.runs.composition import compose
from lockstep.runs.validation import check_single, validated


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value")
    parser.add_argument("--from", type=float, default=1e-6, dest="first", metavar="RATE", help="the first rate (default: 1e-6)")
    parser.add_argument("--to", type=float, default=1.0, dest="last", metavar="RATE", help="the last one (default: 1)")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps from one to the other (default: 200)")
    parser.add_argument("--picture", default="lr_range.png", metavar="PNG", help="where the curve goes (default: lr_range.png)")
    given = parser.parse_args()
    check_single(given.overrides)
    with tempfile.TemporaryDirectory(prefix="lockstep-rate-") as folder:
        cfg, plan = validated(compose(f"run_dir={quote(folder)}", *given.overrides))
        from lockstep.tuning import find_rate

        finder = find_rate(cfg, plan, given.first, given.last, given.steps)
    finder.plot(suggest=True).savefig(given.picture)
    rate = finder.suggestion()
    key = f"model.{rate_key(cfg.model) or 'optimizer.lr'}"
    print("\nNo rate is suggested; take more steps" if rate is None else f"\nThe loss falls fastest at {key}={rate:.2g}")
    print(f"The curve: {given.picture}")


if __name__ == "__main__":
    start(main)
