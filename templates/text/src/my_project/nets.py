"""Nets: plain modules of torch. `num_outputs`, how many tokens there are, comes from the data."""

from torch import Tensor, nn


class GRU(nn.Module):
    """A recurrent net that predicts the next token."""

    def __init__(self, num_outputs: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_outputs, width)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, num_outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """(n, length) to logits (n, length, num_outputs)."""
        return self.head(self.recurrent(self.embedding(tokens))[0])
