"""Write text with a trained language model: a prompt, and what follows it.

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

from omegaconf import OmegaConf

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.errors import config_error
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
    given = parser.parse_args()
    import torch

    from lockstep.extras.language.gpt import GPT
    from lockstep.extras.language.language_model import LanguageModel
    from lockstep.extras.language.sampling import continuation
    from lockstep.extras.language.vocabulary import vocabulary
    from lockstep.models.from_checkpoint import load_model

    cfg, model = saved_config(given.run_dir, []), load_model(find_checkpoint(given.run_dir, given.checkpoint))
    if not isinstance(model, LanguageModel) or not isinstance(model.net, GPT):
        raise config_error("RUN_DIR", given.run_dir, f"is of a {type(model).__name__}; choose the run of a model=gpt")
    tokens = vocabulary(*(OmegaConf.select(cfg, f"datamodule.{key}") for key in ("tokenizer", "separator")))
    prompt = [tokens.separator, *map(int, tokens.encode(given.prompt.encode()))]
    how = {name: getattr(given, name) for name in ("temperature", "top_k", "top_p", "seed")}
    drawn = itertools.islice(continuation(model.net, torch.tensor(prompt), **how), given.length)
    text = tokens.decode([*prompt, *itertools.takewhile(lambda token: token != tokens.separator, drawn)])
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    start(main)
