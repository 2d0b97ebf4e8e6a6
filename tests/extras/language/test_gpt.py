"""A Transformer whose tokens see what they should."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.errors import ConfigError
from lockstep.extras.language.gpt import GPT, Cache
from lockstep.extras.language.sampling import _kept, continuation

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


@pytest.mark.parametrize("length", [16, 20])
def test_without_documents_it_is_as_with_a_separator_that_does_not_come(length: int) -> None:
    """Where a row is no longer than the context, by attention's own kernels for that."""
    row = tokens(2, length)
    torch.testing.assert_close(small(separator=None)(row), small()(row), rtol=0, atol=1e-12)


def test_documents_in_one_row_are_as_if_each_were_alone() -> None:
    net, row = small(), tokens(1, 16)
    row[0, [0, 5, 9]] = SEPARATOR
    packed = net(row)
    for begin, end in ((0, 5), (5, 9), (9, 16)):
        torch.testing.assert_close(packed[:, begin:end], net(row[:, begin:end]), rtol=0, atol=1e-6)  # angles are in float32
    assert not torch.allclose(small(separator=None)(row)[:, 9:], packed[:, 9:], atol=1e-3)


@pytest.mark.parametrize("length", [16, 40])
def test_with_a_cache_it_is_as_without(length: int) -> None:
    """Beyond its context too, where a token sees the last ones."""
    net, rows = small(), tokens(2, length)
    rows[0, 6] = rows[1, 11] = SEPARATOR
    whole, cache = net(rows), Cache(net.context)
    ends = sorted({1, 2, 7, 12, 13, length - 4, length})
    parts = [net(rows[:, begin:end], cache) for begin, end in itertools.pairwise([0, *ends])]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-12)


def test_a_token_sees_as_many_as_the_context_and_no_more() -> None:
    net, row = small(context=4, depth=1), tokens(1, 8)
    changed = row.clone()
    changed[0, 2] = (row[0, 2] + 1) % SEPARATOR
    assert (net(row) != net(changed)).any(dim=2)[0].tolist() == [False] * 2 + [True] * 4 + [False] * 2


def test_the_small_one_has_the_number_of_parameters_worked_out_by_hand() -> None:
    """Of each block: four projections 768 * 768, three matrices 768 * 2048, two norms; one embedding, and the last norm."""
    with torch.device("meta"):
        net = GPT((1024,), 50_257, width=768, depth=12, heads=12)
    blocks = 12 * (4 * 768 * 768 + 3 * 768 * 2048 + 2 * 768)
    assert sum(parameter.numel() for parameter in net.parameters()) == blocks + 50_257 * 768 + 768
    assert net.flops_per_token == 6 * (blocks + 50_257 * 768 + 768) + 12 * 12 * 768 * 1024


def test_operations_where_not_everything_is_trained() -> None:
    """A block has 3872 parameters, and attention to 16 places of width 16; the head 11 * 16, after a norm of 16."""
    net, attention = small(), 16 * 16
    net.requires_grad_(False)
    assert net.flops_per_token == 2 * (2 * 3872 + 16 + 176) + 2 * 4 * attention  # forward alone
    net.layers[1].requires_grad_(True)
    first = 2 * 3872 + 4 * attention
    assert net.flops_per_token == first + 6 * 3872 + 12 * attention + 4 * (16 + 176)
    finetuning = pytest.importorskip("lockstep.extras.finetuning.lora")
    finetuning.lora(net, rank=1, match="layers.1.*q_proj")
    assert net.flops_per_token == first + 4 * 3872 + 6 * (16 + 16) + 12 * attention + 4 * (16 + 176)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"heads": 3}, "model.net.heads=3: accepted are heads of even width, for model.net.width=16"),
        ({"heads": 16}, "model.net.heads=16: accepted are heads of even width, for model.net.width=16"),
        ({"kv_heads": 3}, "model.net.kv_heads=3: accepted is a divisor of model.net.heads=4"),
        ({"separator": 11}, "model.net.separator=11: accepted is one of 11 tokens, -1 the last, or null"),
    ],
)
def test_what_does_not_divide_is_refused(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        small(**options)
    assert str(refused.value) == line


def test_data_that_is_no_text_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^model.net._target_=lockstep.extras.language.gpt.GPT: takes rows .* has shape \(1, 8, 8\); acc"
    ):
        GPT((1, 8, 8), 10, width=16, depth=1, heads=2)


def test_which_tokens_are_drawn() -> None:
    """Probabilities 1/2, 1/4, 1/8, 1/8 in another order."""
    logits = torch.tensor([1 / 8, 1 / 2, 1 / 8, 1 / 4], dtype=torch.float64).log()
    assert _kept(logits, 1.0, None, 1.0).tolist() == pytest.approx([1 / 8, 1 / 2, 1 / 8, 1 / 4])
    assert _kept(logits, 1.0, 2, 1.0).tolist() == pytest.approx([0, 2 / 3, 0, 1 / 3])
    assert _kept(logits, 1.0, None, 0.6).tolist() == pytest.approx([0, 1 / 2, 0, 1 / 4])
    assert _kept(logits, 1.0, None, 0.1).nonzero().tolist() == [[1]]
    assert _kept(logits, 0.0, None, 1.0).nonzero().tolist() == [[1]]
    assert _kept(logits, 0.5, None, 1.0).tolist() == pytest.approx([1 / 22, 16 / 22, 1 / 22, 4 / 22])  # squares, normalised
    # of the two that are left, the first has 2/3: less than 0.7, though more than 0.6
    assert _kept(logits, 1.0, 2, 0.6).nonzero().tolist() == [[1]]
    assert _kept(logits, 1.0, 2, 0.7).nonzero().tolist() == [[1], [3]]


def test_the_same_seed_goes_on_in_the_same_way_and_the_likeliest_is_the_argmax() -> None:
    net = small()

    def drawn(**options: Any) -> list[int]:
        return list(itertools.islice(continuation(net, torch.tensor([SEPARATOR, 3]), **options), 24))

    assert drawn(seed=1) == drawn(seed=1) != drawn(seed=2)
    row = [SEPARATOR, 3, *drawn(temperature=0)]
    assert net(torch.tensor([row]))[0, 1:-1].argmax(dim=1).tolist() == row[2:]
