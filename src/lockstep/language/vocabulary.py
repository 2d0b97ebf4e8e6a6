"""The tokens that texts are made of."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy


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
