"""Text files, or the sources of Python's standard library, in windows of tokens."""

import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

from lockstep.datamodules.base import DataModule, DataSpec, Splits
from lockstep.errors import check_at_least, config_error
from lockstep.language.tokens import Vocabulary, Windows, token_file

# Folders of the standard library with what is installed beside it, with tests, an editor, and generated tables and texts.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "lib2to3", "encodings", "pydoc_data"}


class Text(DataModule):
    """Files in the order of their paths, packed one after the other, each a document of its own.

    The beginning of the tokens is for training, the part after it for validation, the end for the test.
    """

    def __init__(
        self,
        paths: Sequence[str] | None = None,
        suffixes: Sequence[str] = (".txt", ".md", ".py"),
        context: int = 256,
        tokenizer: str | None = None,
        test_fraction: float = 0.05,
        cache_dir: str = "data/tokens",
        **loading: Any,
    ) -> None:
        super().__init__(**loading)
        check_at_least(1, context=context)
        self.paths, self.suffixes, self.cache_dir = paths, tuple(suffixes), Path(cache_dir)
        self.context, self.test_fraction, self.has_test = context, test_fraction, test_fraction > 0
        self.vocabulary = Vocabulary(tokenizer)
        self.spec = DataSpec((context,), self.vocabulary.size)

    def prepare_data(self) -> None:
        """Write the tokens."""
        self.load()

    def load(self) -> Splits:
        """Cut the tokens into the splits."""
        path = token_file(self._files(), self.vocabulary, self.cache_dir)
        length = len(numpy.load(path, mmap_mode="r"))
        test = round(length * (1 - self.test_fraction))
        val = round(length * (1 - self.test_fraction - self.val_fraction))
        parts = slice(0, val), slice(val, test), slice(test, length)
        return Splits(*(Windows(path, part, self.context) if part.start < part.stop else None for part in parts))

    def _files(self) -> list[Path]:
        if self.paths is None:
            return standard_library()
        files: list[Path] = []
        for path in map(Path, self.paths):
            if not path.exists():
                raise config_error("datamodule.paths", path, f"no such file or folder: {path.absolute()}; use text files")
            below = (file for file in path.rglob("*") if file.is_file() and file.name.endswith(self.suffixes))
            files += sorted(below) if path.is_dir() else [path]
        return files


def standard_library() -> list[Path]:
    """Return the Python sources of this interpreter's standard library, sorted."""
    files: list[Path] = []
    for parent, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = set(folders) - LEFT_OUT
        files += [Path(parent, name) for name in names if name.endswith(".py")]
    return sorted(files)
