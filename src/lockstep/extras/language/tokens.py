"""Text files as one row of tokens, in a file that every process of a machine maps into its memory, and windows of that row.

The file is named after all that it depends on, so it is never out of date; and it appears under that name when it is whole.
"""

import hashlib
import json
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
from lockstep.errors import config_error
from lockstep.extras.file_cache.file_cache import write_once
from lockstep.extras.language.vocabulary import Vocabulary

log = logging.getLogger(__name__)

NOT_COUNTED = -100  # a target that is none: torch's ignore_index
_FORMAT = 2  # of the file


def token_file(paths: Sequence[Path], vocabulary: Vocabulary, folder: Path) -> Path:
    """The file of the tokens of these texts, in this order, each after a separator, and one more separator at the end; beside it,
    ending in .npy, the positions of the separators. Written now if it is not there.

    Raises ConfigError where a text can't be read or the folder can't be written to.
    """
    path = folder / f"{_key(paths, vocabulary)}-{_type(vocabulary).__name__}.tokens"
    try:
        write_once(path, lambda: _write(path, paths, vocabulary))
    except OSError as error:
        reason = error.strerror or error
        raise config_error("datamodule.cache_dir", folder, f"can't be written ({reason}); accepted is a folder") from error
    return path


def _type(vocabulary: Vocabulary) -> Any:
    return numpy.uint16 if vocabulary.size <= 2**16 else numpy.uint32


def _key(paths: Sequence[Path], vocabulary: Vocabulary) -> str:
    """Returns a digest of the texts' names, sizes and times, and of what the tokens are."""
    try:
        files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    except OSError as error:
        raise _unreadable(error.filename, error) from error
    return hashlib.sha256(json.dumps([files, vocabulary.identity, _FORMAT]).encode()).hexdigest()[:16]


def _write(path: Path, paths: Sequence[Path], vocabulary: Vocabulary) -> None:
    log.info(f"writing the tokens of {len(paths)} files into {path}")
    token_bytes, kind, separator = vocabulary.token_bytes, _type(vocabulary), [vocabulary.separator]
    text_bytes = bytes_of_tokens = 0
    starts = [0]
    with replacing(path, "wb") as file:
        for text in paths:
            try:
                content = text.read_bytes()
                tokens = numpy.asarray(vocabulary.encode(content), kind)
            except (OSError, UnicodeDecodeError) as error:
                raise _unreadable(text, error) from error
            text_bytes += len(content)
            bytes_of_tokens += int(token_bytes[torch.from_numpy(tokens.astype(numpy.int64))].sum())
            file.write(numpy.asarray(separator, kind).tobytes() + tokens.tobytes())
            starts.append(starts[-1] + 1 + len(tokens))
        file.write(numpy.asarray(separator, kind).tobytes())
        with replacing(path.with_suffix(".npy"), "wb") as beside:  # there before the tokens are
            numpy.save(beside, numpy.asarray(starts))
    if text_bytes != bytes_of_tokens:
        log.warning(f"the tokens stand for {bytes_of_tokens} bytes of {text_bytes}: bits per byte is of the former")


def _unreadable(path: Any, error: Exception) -> Exception:
    return config_error("datamodule.paths", path, f"not a readable text ({error})")


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Pairs of `context` tokens and those that follow each of them, of a row. Each token but the first is the target of one
    window. A process that gets a pickled copy maps the file again.

    Args:
        parts: the row is these of the tokens in the file, one after the other: (n, 2), where each begins and ends.
        overlap: so many tokens before those that it predicts a window begins with, to be seen; their targets are NOT_COUNTED. So
            are the positions after the end of the row.
    """

    def __init__(self, path: Path, vocabulary: Vocabulary, parts: numpy.ndarray, context: int, overlap: int = 0) -> None:
        self._arguments = (path, vocabulary, parts, context, overlap)
        self._file = numpy.memmap(path, _type(vocabulary), "r")
        self._ends = (parts[:, 1] - parts[:, 0]).cumsum()  # in the row
        self._shifts = parts[:, 1] - self._ends  # from positions in the row to those in the file
        self.length = int(self._ends[-1])
        self.context, self.overlap, self.separator = context, overlap, vocabulary.separator

    @property
    def row(self) -> numpy.ndarray:
        """All of its tokens."""
        return self._tokens(numpy.arange(self.length))

    def _tokens(self, positions: numpy.ndarray) -> numpy.ndarray:
        parts = numpy.searchsorted(self._ends, positions, side="right")
        return self._file[positions + self._shifts[parts]].astype(numpy.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        return Windows, self._arguments

    def __len__(self) -> int:
        return max(1, math.ceil((self.length - 1 - self.overlap) / (self.context - self.overlap)))

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.__getitems__([index])
        return inputs[0], targets[0]

    def __getitems__(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Returns inputs and targets of n windows, (n, context) each."""
        first = torch.as_tensor(ids)[:, None] * (self.context - self.overlap)
        positions = first + torch.arange(self.context + 1)
        tokens = torch.from_numpy(self._tokens(positions.clamp(max=self.length - 1).numpy()))
        is_after = positions >= self.length
        is_context_only = (first > 0) & (torch.arange(self.context) < self.overlap)
        inputs = tokens[:, :-1].masked_fill(is_after[:, :-1], self.separator)
        return inputs, tokens[:, 1:].masked_fill(is_after[:, 1:] | is_context_only, NOT_COUNTED)
