"""Writes a trained model's weights as safetensors, to be read without Lightning, Hydra or this package.

    python scripts/export.py RUN_DIR                     # RUN_DIR/export/best.safetensors
    python scripts/export.py RUN_DIR --checkpoint last --to weights.safetensors
    python scripts/export.py RUN_DIR --layout llama      # RUN_DIR/export/best.llama/, of a model=gpt

The file holds the tensors under the model's own names, and as its metadata ("model_config", JSON) the config the model is built
from, or the hyperparameters that a LightningModule of your own has saved. In Python:

    from safetensors import safe_open
    with safe_open("best.safetensors", framework="pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}
        model_config = json.loads(file.metadata()["model_config"])

With --layout llama it is a folder that transformers' LlamaForCausalLM.from_pretrained reads: model.safetensors and config.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from lockstep import console
from lockstep.atomic_files import replacing, write_json
from lockstep.cli import start
from lockstep.errors import config_error
from lockstep.runs.saved import checkpoint_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--checkpoint", metavar="best|last|PATH", help="default: best")
    parser.add_argument("--layout", choices=["own", "llama"], default="own", help="of the names; default: own")
    parser.add_argument("--to", type=Path, metavar="PATH", help="default: RUN_DIR/export/CHECKPOINT.safetensors or .llama")
    arguments = parser.parse_args()
    source = checkpoint_of(arguments.run_dir, arguments.checkpoint)
    suffix, export = (".llama", as_llama) if arguments.layout == "llama" else (".safetensors", as_it_is)
    export(source, arguments.to or arguments.run_dir / "export" / f"{source.stem}{suffix}")


def as_it_is(source: Path, target: Path) -> None:
    """The whole state under its own names, in one file."""
    from lockstep.checkpointing import read_checkpoint
    from lockstep.extras.finetuning.lora import merged

    checkpoint = read_checkpoint("checkpoint", source)
    weights, model_config = merged(checkpoint["state_dict"]), checkpoint.get("hyper_parameters", {})
    if weights.keys() != checkpoint["state_dict"].keys():  # the net without what was merged
        model_config = model_config | {"model": {key: v for key, v in model_config["model"].items() if key != "adapt"}}
    about = {"model_config": json.dumps(model_config, default=str)}
    about["metrics"] = json.dumps(checkpoint.get("metrics", {}))
    write(weights, target, about | {"source": str(source)})


def as_llama(source: Path, target: Path) -> None:
    """A folder in the layout of Hugging Face's Llama."""
    from lockstep.build import load_model
    from lockstep.extras.language.gpt import GPT
    from lockstep.extras.language.llama import to_llama

    net = load_model(source).net
    if not isinstance(net, GPT):
        raise config_error("--layout", "llama", f"is for model=gpt, and {source} is of a {type(net).__name__}; accepted is own")
    weights, config = to_llama(net)
    target.mkdir(parents=True, exist_ok=True)
    write_json(target / "config.json", config | {"dtype": str(net.norm.weight.dtype).removeprefix("torch.")})
    write(weights, target / "model.safetensors", {})


def write(tensors: dict[str, Any], target: Path, about: dict[str, str]) -> None:
    from safetensors.torch import save_file

    # copies: two names of one tensor are two tensors in the file
    weights = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target, "wb") as file:
        save_file(weights, file.name, metadata=about | {"format": "pt"})
    size = f"{target.stat().st_size / 2**20:.2f} MiB"
    console.show_table([("weights", str(target)), ("tensors", str(len(weights))), ("size", size)])


if __name__ == "__main__":
    start(main)
