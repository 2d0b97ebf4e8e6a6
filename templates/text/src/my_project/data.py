"""Data: here the text of Python's reference manual, which needs no download; put yours in its place."""

from pathlib import Path
from pydoc_data import topics
from typing import Any

import torch
from lockstep.datamodules import DataModule, DataSpec, Splits
from lockstep.errors import config_error
from torch.utils.data import TensorDataset


class Corpus(DataModule):
    """Windows of `context` bytes, each byte a token; the targets are the bytes that follow. The last tenth is the test."""

    def __init__(self, path: str | None = None, context: int = 64, **loading: Any) -> None:
        super().__init__(**loading)
        self.path, self.context = path, context
        self.spec = DataSpec(input_shape=(context,), num_outputs=256)

    def load(self) -> Splits:
        if self.path is not None and not Path(self.path).is_file():
            raise config_error("datamodule.path", self.path, "use a text file")
        text = "\n".join(topics.topics.values()).encode() if self.path is None else Path(self.path).read_bytes()
        if len(text) <= 10 * self.context:
            raise config_error("datamodule.path", self.path, f"has {len(text)} bytes; ten windows take {10 * self.context + 1}")
        tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        windows = tokens.unfold(0, self.context + 1, self.context)
        inputs, targets = windows[:, :-1], windows[:, 1:]
        test = len(windows) // 10
        held_out = TensorDataset(inputs[-test:], targets[-test:])
        return self.drawn(TensorDataset(inputs[:-test], targets[:-test]), test=held_out)  # val is drawn from train, with the seed
