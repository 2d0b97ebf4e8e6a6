"""Tokens that follow others, drawn one by one."""

from collections.abc import Iterator

import torch
from torch import Tensor

from lockstep.language.gpt import GPT


@torch.no_grad()
def continuation(net: GPT, tokens: Tensor, temperature: float = 1.0, top_k: int | None = None, seed: int = 0) -> Iterator[int]:
    """Yield without end the tokens that follow `tokens`, (length,) with length of at least 1.

    Args:
        temperature: divides the logits.
        top_k: number of the most probable tokens that are drawn from; None for all.
    """
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = tokens[-net.context :]
        logits = net(tokens[None])[0, -1].double().cpu() / temperature
        values, order = logits.topk(top_k or len(logits))
        drawn = order[torch.multinomial(values.softmax(dim=0), 1, generator=generator)]
        yield int(drawn)
        tokens = torch.cat((tokens, drawn.to(tokens.device)))
