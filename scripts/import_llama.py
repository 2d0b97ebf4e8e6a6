"""Makes a checkpoint of a model in Hugging Face's layout of Llama: a folder with config.json and model.safetensors.

    python scripts/import_llama.py FOLDER weights.ckpt

and prints the command that trains it further. Accepted are Llamas whose head is their embedding, without scaled rotary positions.
Nothing is downloaded.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lockstep import console
from lockstep.__main__ import script_parser
from lockstep.atomic_files import replacing
from lockstep.cli import start
from lockstep.config.overrides import quote
from lockstep.errors import config_error
from lockstep.runs.composition import compose


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("checkpoint", type=Path, metavar="FILE")
    arguments = parser.parse_args()

    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from lockstep.extras.language.llama import from_llama
    from lockstep.models.from_config import build_model

    try:
        config = json.loads((arguments.folder / "config.json").read_text())
        tensors = load_file(arguments.folder / "model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        accepted = f"accepted is a folder with config.json and model.safetensors ({error})"
        raise config_error("FOLDER", arguments.folder, accepted) from error
    if not isinstance(config, dict):
        raise config_error("config.json", config, f"accepted is a group of values; that of {arguments.folder} is none")
    state, made_with = from_llama(tensors, config)
    spec = {"input_shape": made_with.pop("input_shape"), "num_outputs": made_with.pop("num_outputs"), "class_names": None}
    overrides = [f"model.net.{name}={'null' if value is None else value}" for name, value in made_with.items()]
    overrides = ["model=gpt", "datamodule=text", "optimized_metric=val/loss", "optimized_mode=min", *overrides]
    cfg = compose(*overrides)
    model_config = {"model": OmegaConf.to_container(cfg.model, resolve=True), "spec": spec}
    model: Any = build_model(model_config)
    try:
        model.net.load_state_dict(state)
    except RuntimeError as error:
        raise config_error("FOLDER", arguments.folder, f"its tensors are not those of its config.json ({error})") from error
    with replacing(arguments.checkpoint, "wb") as file:
        torch.save({"state_dict": model.state_dict(), "hyper_parameters": model_config}, file)
    data = [f"datamodule.context={spec['input_shape'][0]}", *tokens(arguments.folder, made_with["separator"])]
    console.show_table([("checkpoint", str(arguments.checkpoint))])
    console.say(shlex.join(["python", "train.py", f"init_from={_quoted(str(arguments.checkpoint))}", *overrides, *data]))


def tokens(folder: Path, separator: int | None) -> list[str]:
    """Overrides for the tokenizer in a folder; without one tokens are bytes."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return []
    added = {token["id"]: token["content"] for token in json.loads(path.read_text()).get("added_tokens", [])}
    begins_with = [f"datamodule.separator={_quoted(added[separator])}"] if separator in added else []
    return [f"datamodule.tokenizer={_quoted(str(path))}", *begins_with]


def _quoted(value: str) -> str:
    """Where Hydra needs it."""
    return value if re.fullmatch(r"[\w./-]+", value) else quote(value)


if __name__ == "__main__":
    start(main)
