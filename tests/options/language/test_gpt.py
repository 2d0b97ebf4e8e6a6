"""A Transformer whose tokens see what they should."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.errors import ConfigError
from lockstep.language.gpt import GPT
from lockstep.language.sampling import continuation

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


def test_the_small_one_has_the_number_of_parameters_worked_out_by_hand() -> None:
    """Of each block: four projections 768 * 768, three matrices 768 * 2048, two norms; one embedding, and the last norm."""
    with torch.device("meta"):
        net = GPT((1024,), 50_257, width=768, depth=12, heads=12)
    blocks = 12 * (4 * 768 * 768 + 3 * 768 * 2048 + 2 * 768)
    assert sum(parameter.numel() for parameter in net.parameters()) == blocks + 50_257 * 768 + 768


def test_data_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has the shape \(1, 8, 8\); use datamodule=text$"):
        GPT((1, 8, 8), 10, width=16, depth=1, heads=2)


def test_the_same_seed_goes_on_in_the_same_way_and_the_likeliest_is_the_argmax() -> None:
    net = small()

    def drawn(**options: Any) -> list[int]:
        return list(itertools.islice(continuation(net, torch.tensor([SEPARATOR, 3]), **options), 24))

    assert drawn(seed=1) == drawn(seed=1) != drawn(seed=2)
    row = [SEPARATOR, 3, *drawn(top_k=1)]
    for end in range(2, len(row)):
        seen = row[max(0, end - net.context) : end]
        assert int(net(torch.tensor([seen]))[0, -1].argmax()) == row[end]
