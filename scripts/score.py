"""Write the loss of each training sample by a trained model: what a curriculum takes for how hard it is.

    python scripts/score.py RUN_DIR                          # RUN_DIR/scores.pt
    python scripts/score.py RUN_DIR --checkpoint last --to scores.pt
    python train.py datamodule/curriculum=linear \
      datamodule.curriculum.scores._target_=lockstep.extras.curriculum.curriculum.saved \
      +datamodule.curriculum.scores.path=RUN_DIR

The samples are those of the run's training split, not augmented; another seed splits otherwise.
"""

import lockstep.launchers.stop_at_once  # noqa: F401

# isort: split
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.config.construct import construct
from lockstep.errors import config_error
from lockstep.extras.saved_runs import find_checkpoint, load_saved_model, saved_config


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="changes to the saved config")
    parser.add_argument("--checkpoint", metavar="best|last|PATH", help="default: best")
    parser.add_argument("--to", type=Path, metavar="FILE", help="default: RUN_DIR/scores.pt")
    given = parser.parse_intermixed_args()
    from lockstep.datamodules import DataModule
    from lockstep.extras.curriculum.curriculum import save_scores
    from lockstep.models import Task

    cfg = saved_config(given.run_dir, given.overrides)
    cfg.datamodule.pop("curriculum", None)
    datamodule: Any = construct("datamodule", OmegaConf.to_container(cfg.datamodule, resolve=True))
    model = load_saved_model(cfg, find_checkpoint(given.run_dir, given.checkpoint))
    if not isinstance(datamodule, DataModule) or not isinstance(model, Task):
        raise config_error("RUN_DIR", given.run_dir, "has no model and data of this package; choose a run of a Task")
    datamodule.prepare_data()
    (losses, parts), target = compute_losses(model, datamodule), given.to or given.run_dir / "scores.pt"
    save_scores(datamodule.splits.train, losses, target)
    print(f"{len(losses)} scores in {target}; the mean loss is {float(losses @ parts / parts.sum()):.4f}")


def compute_losses(model: Any, datamodule: Any) -> Any:
    """Return for each sample of the training split its loss, and the number of tokens it is the mean of. Both (length,)."""
    import torch

    train = datamodule.splits.train
    losses, parts = torch.full((2, len(train)), torch.nan, dtype=torch.float64)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.eval().to(device)
    with torch.inference_mode():
        for batch in datamodule.eval_loader(train):
            moved = batch.to(device)
            measured = model.measure(model(moved.inputs), moved.targets)
            tokens = measured.get("tokens", torch.ones_like(measured["loss"]))
            total = measured.get("nats", measured["loss"])  # a language model's loss is by the length of the window
            losses[batch.ids], parts[batch.ids] = (total / tokens.clamp(min=1)).double().cpu(), tokens.double().cpu()
    return losses, parts


if __name__ == "__main__":
    start(main)
