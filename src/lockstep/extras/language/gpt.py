"""A decoder-only Transformer: the parts, and the names of the parameters, of Llama (Touvron et al. 2023, arXiv:2302.13971)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lockstep.errors import check_at_least, config_error


class GPT(nn.Module):
    """RMSNorm, rotary positions, SwiGLU, and one matrix for the embedding and the head.

    Documents may follow each other in a row: one begins with the token `separator`, and no token sees another document. A token
    sees at most so many back as a row of the training data is long, itself included.

    Args:
        width: of a token's vector, a multiple of `heads`.
        mlp_width: within SwiGLU; null is 8/3 of the width, up to a multiple of 32.
        kv_heads: keys and values are shared by groups of heads (Ainslie et al. 2023, arXiv:2305.13245); null is one each.
        separator: a token's number, -1 the last one; null: a row is one document. It is to be the data's.
    """

    stage_ends = (("embed_tokens",), ("norm", "embed_tokens"))  # beside its layers, what the first and the last stage have

    def __init__(
        self,
        input_shape: Sequence[int],
        num_outputs: int,
        width: int,
        depth: int,
        heads: int,
        mlp_width: int | None = None,
        kv_heads: int | None = None,
        separator: int | None = -1,
        rope_base: float = 10_000.0,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__()
        check_at_least(1, width=width, depth=depth, heads=heads, mlp_width=mlp_width, kv_heads=kv_heads)
        kv_heads = heads if kv_heads is None else kv_heads
        if len(input_shape) != 1:
            needs = f"takes rows of tokens, and the data has shape {tuple(input_shape)}; accepted is datamodule=text"
            raise config_error("model.net._target_", "lockstep.extras.language.gpt.GPT", needs)
        if width % heads or width // heads % 2:
            raise config_error("model.net.heads", heads, f"accepted are heads of even width, for model.net.width={width}")
        if heads % kv_heads:
            raise config_error("model.net.kv_heads", kv_heads, f"accepted is a divisor of model.net.heads={heads}")
        if separator is not None and not -num_outputs <= separator < num_outputs:
            raise config_error("model.net.separator", separator, f"accepted is one of {num_outputs} tokens, -1 the last, or null")
        mlp_width = -(-width * 8 // (3 * 32)) * 32 if mlp_width is None else mlp_width
        self.context = input_shape[0]
        self.separator = None if separator is None else separator % num_outputs
        self.head_width, self.rope_base = width // heads, rope_base
        self.embed_tokens = nn.Embedding(num_outputs, width)
        self.layers = nn.ModuleList(Block(width, mlp_width, heads, kv_heads, norm_eps) for _ in range(depth))
        self.norm = nn.RMSNorm(width, norm_eps)
        self._initialize()

    @torch.no_grad()
    def _initialize(self) -> None:
        """Draws weights as GPT-2 does: deviation 0.02, less by the square root of their number for layers that add to the
        residual."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                is_last = name.endswith(("o_proj.weight", "down_proj.weight"))
                parameter.normal_(std=0.02 / (2 * len(self.layers)) ** 0.5 if is_last else 0.02)

    @property
    def flops_per_token(self) -> float:
        """Floating-point operations of a training step, forward and backward (Chowdhery et al. 2022, arXiv:2204.02311,
        appendix B), with attention to a whole context. Of each parameter, those of the embedding as the head, two are forward,
        two for its own gradient, if it trains, and two to pass the gradient on, in layers from the first that trains in part."""
        operations, passes_on = 0.0, self.embed_tokens.weight.requires_grad
        for part in (*self.layers, self.norm, self.embed_tokens):
            parameters = [*part.parameters()]
            passes_on |= any(parameter.requires_grad for parameter in parameters)
            operations += sum((2.0 + 2.0 * passes_on + 2.0 * one.requires_grad) * one.numel() for one in parameters)
            if isinstance(part, Block):
                operations += (4.0 + 8.0 * passes_on) * self.embed_tokens.embedding_dim * self.context
        return operations

    def forward(self, tokens: Tensor, cache: "Cache | None" = None) -> Tensor:
        """Logits (n, length, num_outputs) of the tokens that follow each of `tokens`, numbers (n, length); with a cache, of the
        next ones of those it has been given."""
        return self.stage(tokens, None, range(len(self.layers)), cache)

    def stage(self, tokens: Tensor, x: Tensor | None, layers: range, cache: "Cache | None" = None) -> Tensor:
        """Computes some of the layers, one after the other, from what the layers before them have computed of `tokens`, None for
        the first; and the logits, if the last is among them."""
        cache = Cache(None) if cache is None else cache
        positions, documents, attended_positions, attended_documents = cache.extend(
            self._documents(tokens, cache), tokens.shape[1]
        )
        if self.separator is None and cache.length is None and tokens.shape[1] <= self.context:
            mask = None  # of all earlier tokens: attention has kernels for that, which need no matrix of it
        else:
            distance = positions[:, None] - attended_positions
            mask = (distance >= 0) & (distance < self.context) & (documents[:, :, None] == attended_documents[:, None])
            mask = mask[:, None]
        rotation = _rotation(positions, self.head_width, self.rope_base)
        hidden: Tensor = self.embed_tokens(tokens) if x is None else x
        for number in layers:
            hidden = self.layers[number](hidden, mask, rotation, partial(cache.remember, number))
        is_last = layers.stop == len(self.layers)
        return functional.linear(self.norm(hidden), self.embed_tokens.weight) if is_last else hidden

    def _documents(self, tokens: Tensor, cache: "Cache") -> Tensor:
        """Which document of its row each token belongs to, (n, length)."""
        if self.separator is None:
            return torch.zeros_like(tokens)
        return (tokens == self.separator).cumsum(dim=1) + cache.last_document


class Block(nn.Module):
    def __init__(self, width: int, mlp_width: int, heads: int, kv_heads: int, norm_eps: float) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width, norm_eps), nn.RMSNorm(width, norm_eps)
        self.self_attn = Attention(width, heads, kv_heads)
        self.mlp = SwiGLU(width, mlp_width)

    def forward(self, x: Tensor, *where: Any) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), *where)
        return x + self.mlp(self.post_attention_layernorm(x))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        key_width = self.head_width * kv_heads
        self.q_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(width, key_width, bias=False) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None, rotation: tuple[Tensor, Tensor], remember: Any) -> Tensor:
        """(n, length, width) to the same; `mask` (n, 1, length, attended) is true where a token sees another; without one it sees
        all before it, and itself. The projections may be of some of the heads."""
        queries, keys, values = (_in_heads(layer(x), self.head_width) for layer in (self.q_proj, self.k_proj, self.v_proj))
        queries, keys = _rotated(queries, rotation), _rotated(keys, rotation)
        keys, values = remember(keys, values)
        shared = self.heads != self.kv_heads
        kwargs: dict[str, Any] = {"attn_mask": mask, "is_causal": mask is None, "enable_gqa": shared}
        attended = functional.scaled_dot_product_attention(queries, keys, values, **kwargs)
        return self.o_proj(attended.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """Shazeer 2020, arXiv:2002.05202."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Cache:
    """What generation needs of the tokens so far: the keys and values of the last `length` of them, None for nothing."""

    def __init__(self, length: int | None) -> None:
        self.length = length
        self.count = 0  # tokens so far, those forgotten included
        self.last_document: Tensor | int = 0
        self._documents: Tensor | None = None
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, documents: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Positions (length,) and documents (n, length) of new tokens, and of all that they attend to, themselves included."""
        positions = torch.arange(self.count, self.count + length, device=documents.device)
        if self.length is None:
            return positions, documents, positions, documents
        attended = documents if self._documents is None else torch.cat((self._documents, documents), dim=1)
        attended_positions = torch.arange(self.count + length - attended.shape[1], self.count + length, device=documents.device)
        self.count, self.last_document = self.count + length, documents[:, -1:]
        self._documents = attended[:, -self.length :]
        return positions, documents, attended_positions, attended

    def remember(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """From the new keys and values (n, heads, length, head width) of a layer to all that are attended to."""
        if self.length is None:
            return keys, values
        if layer in self._layers:
            earlier = self._layers[layer]
            keys, values = torch.cat((earlier[0], keys), dim=2), torch.cat((earlier[1], values), dim=2)
        self._layers[layer] = keys[:, :, -self.length :], values[:, :, -self.length :]
        return keys, values


def _in_heads(x: Tensor, head_width: int) -> Tensor:
    """(n, length, heads * head width) to (n, heads, length, head width)."""
    return x.unflatten(2, (-1, head_width)).transpose(1, 2)


def _rotation(positions: Tensor, width: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines (length, width / 2) of the angles by which a position turns pairs of numbers (Su et al. 2021,
    arXiv:2104.09864). Attention sees differences of positions alone, so that those of a document need not begin at zero."""
    frequencies = base ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width)
    angles = positions[:, None].float() * frequencies
    return angles.cos(), angles.sin()


def _rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates (n, heads, length, width): the pairs are the halves, as in Hugging Face's layout of Llama."""
    cosine, sine = (part.to(x.dtype) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
