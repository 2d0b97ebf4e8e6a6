"""A Transformer whose tokens see what they should."""

from typing import Any

import torch
from torch import Tensor

from lockstep.language.gpt import GPT

SEPARATOR = 10


def small(context: int = 16, **options: Any) -> GPT:
    """Eleven tokens, with weights so large that each of them matters."""
    torch.manual_seed(0)
    net = GPT((context,), 11, **{"width": 16, "depth": 2, "heads": 4, "kv_heads": 2, **options}).double().eval()
    for parameter in net.parameters():
        parameter.data.mul_(10 if parameter.ndim == 2 else 1)
    return net


def tokens(*shape: int) -> Tensor:
    return torch.randint(SEPARATOR, shape, generator=torch.Generator().manual_seed(1))


def test_a_token_sees_no_later_one() -> None:
    net, row = small(), tokens(1, 16)
    changed = row.clone()
    changed[0, 9] = (row[0, 9] + 1) % SEPARATOR
    differs = (net(row) != net(changed)).any(dim=2)[0]
    assert not differs[:9].any()
    assert differs[9:].all()


def test_documents_in_one_row_are_as_if_each_were_alone() -> None:
    net, row = small(), tokens(1, 16)
    row[0, [0, 5, 9]] = SEPARATOR
    packed = net(row)
    for begin, end in ((0, 5), (5, 9), (9, 16)):
        torch.testing.assert_close(packed[:, begin:end], net(row[:, begin:end]), rtol=0, atol=1e-6)  # angles are in float32
    assert not torch.allclose(small(separator=None)(row)[:, 9:], packed[:, 9:], atol=1e-3)
