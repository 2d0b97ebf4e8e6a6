"""Decodes a data set of image files once, ahead of time: what a run with datamodule=cached_image_folder does before it trains.

    python scripts/pack.py datamodule=cached_image_folder datamodule.data_dir=PATH [key=value ...]
    python scripts/pack.py datamodule=cached_image_folder datamodule.data_dir=PATH datamodule.size=224 --workers 8

Give what the run will be given of its datamodule: another size is another file. What is there already is not done again. Files
that can't be read are named, all of them, and the exit code is 2.
"""

import logging
import sys

from omegaconf import OmegaConf

from lockstep import console
from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.config.checks import check
from lockstep.config.construct import construct
from lockstep.errors import ExitCode, config_error
from lockstep.runs.composition import compose


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="as for train.py")
    parser.add_argument("--workers", type=int, metavar="N", help="processes that decode; default: one per core")
    arguments = parser.parse_intermixed_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    if arguments.workers is not None and arguments.workers < 1:
        raise config_error("--workers", arguments.workers, "accepted is a number of at least 1")
    cfg = compose(*arguments.overrides)
    check(cfg)
    datamodule = construct("datamodule", OmegaConf.to_container(cfg.datamodule, resolve=True))
    if not hasattr(datamodule, "pack"):
        name = type(datamodule).__name__
        raise config_error("datamodule", name, "is not read from image files; accepted is datamodule=cached_image_folder")
    from lockstep.extras.image_cache.image_cache import UnreadableImages

    try:
        packed = datamodule.pack(arguments.workers)
    except UnreadableImages as error:
        for problem in error.problems:
            console.say(problem)
        sys.exit(ExitCode.REFUSED)
    rows = [(str(images.path), f"{len(images)} images", f"{images.inputs.nbytes / 2**20:.1f} MiB") for images in packed.values()]
    console.show_table(rows, ("file", "holds", "size"))


if __name__ == "__main__":
    start(main)
