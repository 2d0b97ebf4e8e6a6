"""A decoder-only Transformer with the parts and the parameter names of Llama (Touvron et al. 2023, arXiv:2302.13971)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from lockstep.errors import check_at_least, config_error

NORM_EPS = 1e-5
ROPE_BASE = 10_000.0  # base of the wavelengths of rotary positions


class GPT(nn.Module):
    """RMSNorm, rotary positions, SwiGLU, and one matrix for the embedding and the head.

    Documents may share a row: each begins with the token `separator`, and no token attends to another document.

    Args:
        width: of a token's vector, a multiple of 2 * heads.
        kv_heads: number of groups of heads that share keys and values (Ainslie et al. 2023, arXiv:2305.13245); None is `heads`.
        separator: the data's, -1 for the last token; None for rows of one document.
    """

    stage_ends = (("embed_tokens",), ("norm", "embed_tokens"))  # parts of a pipeline's first and last stage, beside layers

    def __init__(
        self,
        input_shape: Sequence[int],
        num_outputs: int,
        width: int,
        depth: int,
        heads: int,
        kv_heads: int | None = None,
        separator: int | None = -1,
    ) -> None:
        super().__init__()
        check_at_least(1, width=width, depth=depth, heads=heads, kv_heads=kv_heads)
        if len(input_shape) != 1:
            needs = f"takes rows of tokens, but the data has the shape {tuple(input_shape)}; use datamodule=text"
            raise config_error("model.net._target_", "lockstep.language.gpt.GPT", needs)
        mlp_width = -(-width * 8 // (3 * 32)) * 32  # 8/3 of the width, up to a multiple of 32
        self.context, self.head_width = input_shape[0], width // heads
        self.separator = None if separator is None else separator % num_outputs
        self.embed_tokens = nn.Embedding(num_outputs, width)
        self.layers = nn.ModuleList(Block(width, mlp_width, heads, kv_heads or heads) for _ in range(depth))
        self.norm = nn.RMSNorm(width, NORM_EPS)
        self._initialize()

    @torch.no_grad()
    def _initialize(self) -> None:
        """Draw weights as GPT-2 does: deviation 0.02, divided by the square root of their number for layers that add to the
        residual."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                is_last = name.endswith(("o_proj.weight", "down_proj.weight"))
                parameter.normal_(std=0.02 / (2 * len(self.layers)) ** 0.5 if is_last else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (n, length, num_outputs) of the tokens that follow each of `tokens`, (n, length)."""
        return self.stage(tokens, None, range(len(self.layers)))

    def stage(self, tokens: Tensor, x: Tensor | None, layers: range) -> Tensor:
        """Compute some of the layers, from the output `x` of those before them, None for the first; and the logits, if the last
        is among them."""
        mask, rotation = self._mask(tokens), _rotation(tokens.shape[1], self.head_width, tokens.device)
        hidden: Tensor = self.embed_tokens(tokens) if x is None else x
        for number in layers:
            hidden = self.layers[number](hidden, mask, rotation)
        is_last = layers.stop == len(self.layers)
        return functional.linear(self.norm(hidden), self.embed_tokens.weight) if is_last else hidden

    def _mask(self, tokens: Tensor) -> Tensor | None:
        """Return (n, 1, length, length), true where a token attends to another; None for all before it and itself, for which
        attention has faster kernels."""
        if self.separator is None:
            return None
        document = (tokens == self.separator).cumsum(dim=1)
        return (document[:, :, None] == document[:, None]).tril()[:, None]


class Block(nn.Module):
    """Attention and SwiGLU, each after a norm and added to its input."""

    def __init__(self, width: int, mlp_width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width, NORM_EPS), nn.RMSNorm(width, NORM_EPS)
        self.self_attn = Attention(width, heads, kv_heads)
        self.mlp = SwiGLU(width, mlp_width)

    def forward(self, x: Tensor, mask: Tensor | None, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Map (n, length, width) to the same shape; see Attention."""
        x = x + self.self_attn(self.input_layernorm(x), mask, rotation)
        return x + self.mlp(self.post_attention_layernorm(x))


class Attention(nn.Module):
    """Attention with rotary positions, whose projections may hold some of the heads (tensor parallelism)."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.has_groups, self.head_width = heads != kv_heads, width // heads
        key_width = self.head_width * kv_heads
        self.q_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(width, key_width, bias=False) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Map (n, length, width) to the same shape; a token attends to where `mask` is true, else to all before it and itself."""
        projected = (layer(x).unflatten(2, (-1, self.head_width)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        queries, keys, values = (heads.transpose(1, 2) for heads in projected)  # (n, heads, length, head width)
        queries, keys = _rotated(queries, rotation), _rotated(keys, rotation)
        attended = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=self.has_groups
        )
        return self.o_proj(attended.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """A gated layer (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, length, width) to the same shape."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


def _rotation(length: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (length, width / 2) of the angles of positions (Su et al. 2021, arXiv:2104.09864). Attention
    depends on their differences, so that those of a document need not begin at zero."""
    frequencies = ROPE_BASE ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angles = torch.arange(length, device=device)[:, None].float() * frequencies
    return angles.cos(), angles.sin()


def _rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate (n, heads, length, width): the pairs are the halves, as in Hugging Face's layout of Llama."""
    cosine, sine = (part.to(x.dtype) for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
