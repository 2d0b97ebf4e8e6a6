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

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep import console
from lockstep.__main__ import script_parser
from lockstep.atomic_files import replacing
from lockstep.cli import start
from lockstep.extras.saved_runs.saved import find_checkpoint


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--checkpoint", metavar="best|last|PATH", help="default: best")
    parser.add_argument("--to", type=Path, metavar="PATH", help="default: RUN_DIR/export/CHECKPOINT.safetensors")
    arguments = parser.parse_args()
    source = find_checkpoint(arguments.run_dir, arguments.checkpoint)
    export(source, arguments.to or arguments.run_dir / "export" / f"{source.stem}.safetensors")


def export(source: Path, target: Path) -> None:
    """Write the whole state to one file. The adaptation of an adapted net is merged into its weights."""
    from lockstep.checkpointing import read_checkpoint
    from lockstep.models.from_checkpoint import load_model

    checkpoint = read_checkpoint("checkpoint", source, whole=())
    weights, model_config = checkpoint["state_dict"], checkpoint.get("hyper_parameters", {})
    stored, model = checkpoint.get("tensor_files"), model_config.get("model")
    if isinstance(model, dict) and model.get("adapt") is not None:
        weights, stored = merge_layers(load_model(source)).state_dict(), None
        model_config = model_config | {"model": {key: value for key, value in model.items() if key != "adapt"}}
    about = {"model_config": json.dumps(model_config, default=str)}
    about["metrics"] = json.dumps(checkpoint.get("metrics", {}))
    read = (lambda _, tensor: tensor) if stored is None else (lambda name, tensor: stored.read(tensor, ("state_dict", name)))
    write(weights, target, about | {"source": str(source)}, read)


def merge_layers(model: Any) -> Any:
    """The model, in which each layer that has a method `merge`, as one with a correction of low rank, is what that returns."""
    layers = {name: layer for name, layer in model.named_modules(remove_duplicate=False) if hasattr(layer, "merge")}
    merged = {id(layer): layer.merge() for layer in layers.values()}  # one for each of several names
    for name, layer in layers.items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, merged[id(layer)])
    return model


def write(
    tensors: dict[str, Any], target: Path, about: dict[str, str], read: Callable[[str, Any], Any] = lambda _, tensor: tensor
) -> None:
    """Writes what read(name, tensor) returns of each tensor, one at a time: for safetensors' own writers all must fit memory.

    The format is the length of the header in 8 bytes, the header and the bytes of the tensors. Those of larger dtypes come first,
    as by the library, so that all are aligned.
    """
    import torch

    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": about | {"format": "pt"}}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].numel() * tensors[name].element_size()
        header[name] = {"dtype": _dtype(tensors[name]), "shape": [*tensors[name].shape], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(read(name, tensors[name]).detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    size = f"{target.stat().st_size / 2**20:.2f} MiB"
    console.show_table([("weights", str(target)), ("tensors", str(len(names))), ("size", size)])


def _dtype(tensor: Any) -> str:
    """Its name in the format, from the library."""
    from safetensors.torch import save
    from torch import empty

    return json.loads(save({"": empty(0, dtype=tensor.dtype)})[8:])[""]["dtype"]


if __name__ == "__main__":
    start(main)
