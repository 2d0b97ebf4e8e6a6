"""Write text with a trained language model: a prompt, and what follows it.

    lockstep generate RUN_DIR "def "
    lockstep generate RUN_DIR "class Reader:" --length 800 --temperature 0.7 --top-k 40 --seed 1

It ends after LENGTH tokens or with the document. The same seed gives the same text.
"""

import lockstep.launchers.stop_at_once  # noqa: F401

# isort: split
import itertools
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lockstep.__main__ import script_parser
from lockstep.cli import start
from lockstep.errors import config_error
from lockstep.history.saved_runs import find_checkpoint, load_saved_model, saved_config


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", default="", help="default: the beginning of a document")
    parser.add_argument("--length", type=int, default=400, help="tokens at most; default: 400")
    parser.add_argument("--temperature", type=float, default=0.8, help="divides the logits; default: 0.8")
    parser.add_argument("--top-k", type=int, help="draw from so many of the likeliest tokens; default: all")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--checkpoint", metavar="best|last|PATH", help="default: best")
    arguments = parser.parse_args()
    cfg = saved_config(arguments.run_dir, [])
    sys.stdout.write(text(arguments, cfg, find_checkpoint(arguments.run_dir, arguments.checkpoint)) + "\n")


def text(arguments: Any, cfg: DictConfig, checkpoint: Path) -> str:
    """Return the prompt and what follows it."""
    import torch

    from lockstep.language.gpt import GPT
    from lockstep.language.sampling import continuation
    from lockstep.language.tokens import Vocabulary

    model = load_saved_model(cfg, checkpoint)
    if not isinstance(model.net, GPT):
        raise config_error("RUN_DIR", arguments.run_dir, f"its net is a {type(model.net).__name__}; use the run of a model=gpt")
    vocabulary = Vocabulary(OmegaConf.select(cfg, "datamodule.tokenizer"))
    prompt = [*map(int, vocabulary.encode(arguments.prompt.encode()))]
    begun = torch.tensor([vocabulary.separator, *prompt])
    drawn = continuation(model.net, begun, arguments.temperature, arguments.top_k, arguments.seed)
    document = itertools.takewhile(lambda token: token != vocabulary.separator, itertools.islice(drawn, arguments.length))
    return vocabulary.decode([*prompt, *document])


if __name__ == "__main__":
    start(main)
