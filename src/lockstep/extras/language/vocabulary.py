"""What tokens are: bytes, or what a file of the library `tokenizers` says. One token separates documents."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from lockstep.errors import config_error


class Bytes:
    """The 256 bytes, and after them the separator."""

    identity = "bytes"
    size, separator = 257, 256

    @property
    def token_bytes(self) -> Tensor:
        """How many bytes of text each token stands for, (size,)."""
        return torch.tensor([1] * 256 + [0])

    def encode(self, text: bytes) -> Sequence[int] | numpy.ndarray:
        return numpy.frombuffer(text, numpy.uint8)

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token != self.separator).decode(errors="replace")


class FromFile:
    """The tokens of a JSON file of `tokenizers`. The separator is one of its tokens, by its text, or one more after all of them.

    Raises ConfigError where the file can't be read, or the library is not installed.
    """

    def __init__(self, path: str, separator: str | None = None) -> None:
        self._tokenizer = _loaded(path)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        count = self._tokenizer.get_vocab_size()
        number = count if separator is None else self._tokenizer.token_to_id(separator)
        if number is None:
            raise config_error("datamodule.separator", separator, f"accepted is a token of {path}, or null")
        self.separator: int = number
        self.size = count + (separator is None)
        self.identity = hashlib.sha256(Path(path).read_bytes()).hexdigest() + f" {self.separator}"

    @property
    def token_bytes(self) -> Tensor:
        """How many bytes of text each token stands for, (size,); none for special ones."""
        special = self._tokenizer.get_added_tokens_decoder()
        of_bytes = "ByteLevel" in str(self._tokenizer.decoder)  # there each character of a token stands for a byte
        pieces = [self._tokenizer.id_to_token(token) or "" for token in range(self.size)]
        return torch.tensor([0 if n in special else len(piece) if of_bytes else _length(piece) for n, piece in enumerate(pieces)])

    def encode(self, text: bytes) -> Sequence[int] | numpy.ndarray:
        return self._tokenizer.encode(text.decode(), add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode([token for token in tokens if token != self.separator])


Vocabulary = Bytes | FromFile


def vocabulary(tokenizer: str | None, separator: str | None) -> Vocabulary:
    """Returns that of a file of `tokenizers`; without one, bytes."""
    if tokenizer is None and separator is not None:
        raise config_error("datamodule.separator", separator, "is a token of datamodule.tokenizer; accepted for bytes is null")
    return Bytes() if tokenizer is None else FromFile(tokenizer, separator)


def _loaded(path: str) -> Any:
    try:
        from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]  it is optional
    except ImportError as error:
        needs = "takes the library `tokenizers`: pip install tokenizers; accepted without it is null, for bytes"
        raise config_error("datamodule.tokenizer", path, needs) from error
    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # the library raises plain Exception
        raise config_error("datamodule.tokenizer", path, f"accepted is a file that `tokenizers` has written ({error})") from error


def _length(piece: str) -> int:
    """Returns a token's bytes; SentencePiece writes a space as U+2581, and a byte that is no character as <0x0A>."""
    is_byte = len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")
    return 1 if is_byte else len(piece.replace("\u2581", " ").encode())
