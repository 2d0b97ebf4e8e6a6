"""Write a trained model's weights as safetensors, to be read without Lightning, Hydra or this package.

    lockstep export RUN_DIR                              # RUN_DIR/export/best.safetensors
    lockstep export RUN_DIR --checkpoint last --to weights.safetensors

The file holds the tensors under the model's own names, and as its metadata ("model_config", JSON) the config the model is built
from, or the hyperparameters that a LightningModule of your own has saved. In Python:

    from safetensors import safe_open
    with safe_open("best.safetensors", framework="pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}
        model_config = json.loads(file.metadata()["model_config"])
"""

import json
from pathlib import Path
from typing import Any

from lockstep.__main__ import script_parser
from lockstep.atomic_files import replacing
from lockstep.cli import start
from lockstep.history.saved_runs import find_checkpoint, load_saved_model, saved_config


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--checkpoint", metavar="best|last|PATH", help="default: best")
    parser.add_argument("--to", type=Path, metavar="PATH", help="default: RUN_DIR/export/CHECKPOINT.safetensors")
    given = parser.parse_args()
    source = find_checkpoint(given.run_dir, given.checkpoint)
    target = given.to or given.run_dir / "export" / f"{source.stem}.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"{export(given.run_dir, source, target)} tensors in {target}")


def export(run_dir: Path, source: Path, target: Path) -> int:
    """Write the state to one file, and return the number of tensors. Corrections of low rank are merged into the weights."""
    from safetensors.torch import save_file

    from lockstep.checkpointing import read_checkpoint

    checkpoint = read_checkpoint("checkpoint", source)
    weights, model_config = checkpoint["state_dict"], checkpoint.get("hyper_parameters", {})
    model = model_config.get("model")
    if isinstance(model, dict) and model.get("adapt") is not None:
        weights = merge_layers(load_saved_model(saved_config(run_dir, []), source)).state_dict()
        model_config = model_config | {"model": {key: value for key, value in model.items() if key != "adapt"}}
    about = {"model_config": json.dumps(model_config, default=str), "metrics": json.dumps(checkpoint.get("metrics", {}))}
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}  # several may be one tensor
    with replacing(target, "wb") as file:
        save_file(own, file.name, about | {"source": str(source), "format": "pt"})
    return len(own)


def merge_layers(model: Any) -> Any:
    """Replace each layer that has a method `merge`, as one with a correction of low rank, by what that returns."""
    layers = {name: layer for name, layer in model.named_modules(remove_duplicate=False) if hasattr(layer, "merge")}
    merged = {id(layer): layer.merge() for layer in layers.values()}  # one for each of several names
    for name, layer in layers.items():
        model.set_submodule(name, merged[id(layer)])
    return model


if __name__ == "__main__":
    start(main)
