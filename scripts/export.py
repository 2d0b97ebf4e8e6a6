"""Writes a trained model's weights as safetensors, to be read without Lightning, Hydra or this package.

    python scripts/export.py RUN_DIR                     # RUN_DIR/export/best.safetensors
    python scripts/export.py RUN_DIR --checkpoint last --to weights.safetensors

The file holds the tensors under the model's own names, and as its metadata ("model_config", JSON) the config the model is built
from, or the hyperparameters that a LightningModule of your own has saved. In Python:

    from safetensors import safe_open
    with safe_open("best.safetensors", framework="pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}
        model_config = json.loads(file.metadata()["model_config"])
"""

import argparse
import json
from pathlib import Path

from lockstep import console
from lockstep.cli import start
from lockstep.runs.saved import checkpoint_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--checkpoint", metavar="best|last|PATH", help="default: best")
    parser.add_argument("--to", type=Path, metavar="FILE", help="default: RUN_DIR/export/CHECKPOINT.safetensors")
    arguments = parser.parse_args()
    source = checkpoint_of(arguments.run_dir, arguments.checkpoint)
    target = arguments.to or arguments.run_dir / "export" / f"{source.stem}.safetensors"

    from safetensors.torch import save_file

    from lockstep.checkpointing import read_checkpoint

    checkpoint = read_checkpoint("checkpoint", source)
    # copies: two names of one tensor are two tensors in the file
    weights = {name: tensor.clone().contiguous() for name, tensor in checkpoint["state_dict"].items()}
    model_config = checkpoint.get("hyper_parameters", {})
    about = {"model_config": json.dumps(model_config, default=str)}
    about["metrics"] = json.dumps(checkpoint.get("metrics", {}))
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    save_file(weights, partial, metadata=about | {"format": "pt", "source": str(source)})
    partial.replace(target)
    size = f"{target.stat().st_size / 2**20:.2f} MiB"
    console.show_table([("weights", str(target)), ("tensors", str(len(weights))), ("size", size)])


if __name__ == "__main__":
    start(main)
