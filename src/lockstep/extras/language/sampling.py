"""Tokens that follow others, drawn one by one."""

from collections.abc import Iterator

import torch
from torch import Tensor

from lockstep.extras.language.gpt import GPT, Cache


@torch.no_grad()
def continuation(
    net: GPT, tokens: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0, seed: int = 0
) -> Iterator[int]:
    """Yields without end the tokens that follow `tokens`, numbers (length,) with length of at least 1.

    Args:
        temperature: divides the logits; 0 takes the most probable token.
        top_k: only so many of the most probable tokens are drawn.
        top_p: only the most probable ones that add up to it (Holtzman et al. 2020, arXiv:1904.09751), of the probability of
            those that top_k leaves, as in Hugging Face's transformers.
    """
    generator, cache = torch.Generator().manual_seed(seed), Cache(net.context)
    while True:
        logits = net(tokens[None], cache)[0, -1].double().cpu()
        probabilities = _kept(logits, temperature, top_k, top_p)
        drawn = int(torch.multinomial(probabilities, 1, generator=generator))
        yield drawn
        tokens = torch.tensor([drawn], device=tokens.device)


def _kept(logits: Tensor, temperature: float, top_k: int | None, top_p: float) -> Tensor:
    """Probabilities (num_outputs,), zero for tokens that are left out."""
    if temperature == 0:
        top_k, temperature = 1, 1.0
    order = logits.argsort(descending=True, stable=True)
    probabilities = (logits[order[:top_k]] / temperature).softmax(dim=0)
    before = probabilities.cumsum(dim=0) - probabilities  # of more probable tokens; of the first, nothing
    left_out = before >= top_p
    left_out[0] = False
    return torch.zeros_like(logits).scatter(0, order[:top_k], probabilities.masked_fill(left_out, 0.0))
