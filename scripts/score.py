"""Write the loss of each training sample by a trained model: what a curriculum takes for how hard it is.

    lockstep score RUN_DIR                                   # RUN_DIR/scores.pt
    lockstep score RUN_DIR --checkpoint last --to scores.pt
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

    cfg = saved_config(given.run_dir, given.overrides)
    cfg.datamodule.pop("curriculum", None)
    datamodule: Any = construct("datamodule", OmegaConf.to_container(cfg.datamodule, resolve=True))
    model = load_saved_model(cfg, find_checkpoint(given.run_dir, given.checkpoint))
    if not isinstance(datamodule, DataModule):
        raise config_error("RUN_DIR", given.run_dir, "its data is no lockstep.datamodules.DataModule; choose another run")
    datamodule.prepare_data()
    losses, target = compute_losses(model, datamodule.splits.train), given.to or given.run_dir / "scores.pt"
    save_scores(datamodule.splits.train, losses, target)
    print(f"{len(losses)} scores in {target}; the mean loss is {float(losses.mean()):.4f}")


def compute_losses(model: Any, train: Any) -> Any:
    """Return the loss of each sample of the training split, (length,): of a training step on it alone."""
    import torch

    from lockstep.datamodules import Batches

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, batches = model.eval().to(device), Batches(train)
    model.log = lambda *_, **__: None
    with torch.inference_mode():
        steps = (model.training_step([part.to(device) for part in batches[[i]]], i) for i in range(len(train)))
        return torch.stack([loss.double().cpu() for loss in steps])


if __name__ == "__main__":
    start(main)
