"""Writes text with a trained language model: a prompt, and what follows it.

    python scripts/generate.py RUN_DIR "def "
    python scripts/generate.py RUN_DIR "class Reader:" --length 800 --temperature 0.7 --top-k 40 --top-p 0.95 --seed 1

It ends after LENGTH tokens or with the document. The same seed gives the same text. Text may go on for longer than the rows the
model was trained on: a token sees at most so many back.
"""

import lockstep.launchers.stop_at_once  # noqa: F401

# isort: split
import itertools
import sys
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.errors import ConfigError, check_at_least, config_error
from lockstep.extras.saved_runs.saved import find_checkpoint, saved_config


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", default="", help="default: the beginning of a document")
    parser.add_argument("--length", type=int, default=400, help="tokens at most; default: 400")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest token; default: 0.8")
    parser.add_argument("--top-k", type=int, help="draw from so many of the likeliest tokens; default: all")
    parser.add_argument("--top-p", type=float, default=1.0, help="draw from the likeliest that add up to it; default: 1.0")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--checkpoint", metavar="best|last|PATH", help="default: best")
    arguments = parser.parse_args()
    try:
        check_at_least(1, length=arguments.length, **{"top-k": arguments.top_k})
        check_at_least(0, temperature=arguments.temperature, seed=arguments.seed)
    except ValueError as error:
        raise ConfigError(f"--{error}") from None
    if not 0 < arguments.top_p <= 1:
        raise config_error("--top-p", arguments.top_p, "is not a probability; use above 0 to 1")
    cfg = saved_config(arguments.run_dir, [])
    checkpoint = find_checkpoint(arguments.run_dir, arguments.checkpoint)
    tokens = (OmegaConf.select(cfg, f"datamodule.{key}") for key in ("tokenizer", "separator"))
    sys.stdout.write(text(arguments, checkpoint, *tokens) + "\n")


def text(arguments: Any, checkpoint: Path, tokenizer: str | None, separator: str | None) -> str:
    """The prompt and what follows it."""
    import torch

    from lockstep.extras.language.gpt import GPT
    from lockstep.extras.language.language_model import LanguageModel
    from lockstep.extras.language.sampling import continuation
    from lockstep.extras.language.vocabulary import vocabulary
    from lockstep.models.from_checkpoint import load_model

    model = load_model(checkpoint)
    if not isinstance(model, LanguageModel) or not isinstance(model.net, GPT):
        raise config_error("RUN_DIR", arguments.run_dir, f"is of a {type(model).__name__}; accepted is the run of a model=gpt")
    tokens = vocabulary(tokenizer, separator)
    prompt = [tokens.separator, *map(int, tokens.encode(arguments.prompt.encode()))]
    how = {name: getattr(arguments, name) for name in ("temperature", "top_k", "top_p", "seed")}
    drawn = itertools.islice(continuation(model.net, torch.tensor(prompt), **how), arguments.length)
    return tokens.decode([*prompt, *itertools.takewhile(lambda token: token != tokens.separator, drawn)])


if __name__ == "__main__":
    start(main)
