"""The tokens of texts: one row of them, in a file that processes map into their memory, and windows of that row."""

import hashlib
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lockstep.atomic_files import replacing
from lockstep.datamodules.file_cache import write_once

log = logging.getLogger(__name__)

NOT_COUNTED = -100  # a target that is none: torch's ignore_index


class Vocabulary:
    """The 256 bytes, or the tokens of a JSON file of the library `tokenizers`; and after them the separator of documents."""

    def __init__(self, path: str | None = None) -> None:
        self._tokenizer: Any = None
        self.name, self.separator = "bytes", 256
        if path is not None:
            from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]  it is optional

            self._tokenizer = Tokenizer.from_file(path)
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self.name, self.separator = hashlib.sha256(Path(path).read_bytes()).hexdigest(), self._tokenizer.get_vocab_size()
        self.size = self.separator + 1

    def encode(self, text: bytes) -> numpy.ndarray:
        """Return the tokens of a text, (length,)."""
        if self._tokenizer is None:
            return numpy.frombuffer(text, numpy.uint8)
        return numpy.array(self._tokenizer.encode(text.decode(), add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, none of which is the separator."""
        return bytes(tokens).decode(errors="replace") if self._tokenizer is None else self._tokenizer.decode(tokens)


def token_file(paths: Sequence[Path], vocabulary: Vocabulary, folder: Path) -> Path:
    """Return the .npy file of the tokens of these texts, each after a separator, with a separator at the end. It is written if
    it is not there: its name depends on the texts' names, sizes and times, and on the vocabulary."""
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    key = hashlib.sha256(repr((files, vocabulary.name)).encode()).hexdigest()[:16]
    path = folder / f"{key}.npy"
    write_once(path, lambda: _write(path, paths, vocabulary))
    return path


def _write(path: Path, paths: Sequence[Path], vocabulary: Vocabulary) -> None:
    log.info(f"writing the tokens of {len(paths)} files into {path}")
    separator = numpy.array([vocabulary.separator], numpy.uint16 if vocabulary.size <= 2**16 else numpy.uint32)
    parts = [separator]
    for text in paths:
        parts += [vocabulary.encode(text.read_bytes()).astype(separator.dtype), separator]
    with replacing(path, "wb") as file:
        numpy.save(file, numpy.concatenate(parts))


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Pairs of `context` tokens and the tokens that follow each of them, of one part of a token file.

    Each token of the part but the first is the target of one window. After its end targets are NOT_COUNTED.
    """

    def __init__(self, path: Path, part: slice, context: int) -> None:
        self.row: numpy.ndarray = numpy.load(path, mmap_mode="r")[part]
        self.context = context

    def __len__(self) -> int:
        return max(1, math.ceil((len(self.row) - 1) / self.context))

    def __getitems__(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of n windows, (n, context) each."""
        positions = torch.as_tensor(ids)[:, None] * self.context + torch.arange(self.context + 1)
        tokens = torch.from_numpy(self.row[positions.clamp(max=len(self.row) - 1).numpy()].astype(numpy.int64))
        return tokens[:, :-1], tokens[:, 1:].masked_fill(positions[:, 1:] >= len(self.row), NOT_COUNTED)
