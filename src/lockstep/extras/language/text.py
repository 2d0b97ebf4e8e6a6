"""Text files, or the sources of Python's standard library, in windows of tokens."""

import hashlib
import math
import os
import sysconfig
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy
from torch import Tensor

from lockstep.datamodules.base import DataModule, DataSpec
from lockstep.datamodules.splits import Splits
from lockstep.errors import EpochTooShort, check_at_least, config_error
from lockstep.extras.language.tokens import Windows, token_file
from lockstep.extras.language.vocabulary import Bytes, vocabulary

# Of the standard library: what is installed beside it, tests, an editor, and tables and texts that programs have written.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "lib2to3", "encodings", "pydoc_data"}


class Text(DataModule):
    """Files in the order of their paths, packed one after the other, each a document of its own.

    The files of the test split are chosen by a hash of their names, which holds for any seed and however many others there are;
    those of the validation split by a hash of the seed and the names. Where there are fewer files than splits, each is a
    contiguous part of all tokens instead, in the order train, val, test, whatever the seed. With an `overlap`, the tokens that a
    window of validation and test is evaluated on are not without a context.
    """

    def __init__(
        self,
        paths: Sequence[str] | None = None,
        suffixes: Sequence[str] = (".txt", ".md", ".py"),
        context: int = 256,
        overlap: int = 0,
        tokenizer: str | None = None,
        separator: str | None = None,
        test_fraction: float = 0.05,
        cache_dir: str = "data/tokens",
        **loading: Any,
    ) -> None:
        super().__init__(**loading)
        check_at_least(1, context=context)
        check_at_least(0, overlap=overlap)
        if overlap >= context:
            raise config_error("datamodule.overlap", overlap, f"accepted is less than datamodule.context={context}")
        if self.standardize:
            raise config_error("datamodule.standardize", "true", "tokens are no numbers to scale; accepted is false")
        self.paths, self.suffixes, self.test_fraction = paths, tuple(suffixes), test_fraction
        self.context, self.overlap, self.cache_dir = context, overlap, Path(cache_dir)
        self.vocabulary = vocabulary(tokenizer, separator)
        self.has_test = test_fraction > 0
        self.spec = DataSpec((context,), self.vocabulary.size)

    @property
    def token_bytes(self) -> Tensor:
        """How many bytes of text each token stands for."""
        return self.vocabulary.token_bytes

    @property
    def separator(self) -> int:
        """The token that a document begins with."""
        return self.vocabulary.separator

    def prepare_data(self) -> None:
        if isinstance(self.vocabulary, Bytes):
            self._check_context()
        self.load()

    def _check_context(self) -> None:
        """Raises ConfigError where the texts, each byte a token, are too short for a step: before their tokens are written."""
        named = self._named()
        try:
            lengths = [path.stat().st_size + 1 for _, path in named]  # with a separator each
        except OSError:
            return  # that one will be named
        if self._is_cut(named):
            tokens = round((sum(lengths) + 1) * (1 - self.val_fraction - self.test_fraction))
        else:
            tokens = sum(lengths[number] for number in self._numbers(named)["train"]) + 1
        windows = max(1, math.ceil((tokens - 1) / self.context))
        try:
            self.check_length(windows)
        except EpochTooShort:
            if windows > 1:
                raise
            line = f"datamodule.context={self.context}: the training texts have {tokens} tokens in all; accepted is less"
            raise EpochTooShort(line) from None

    def _is_cut(self, named: Sequence[Any]) -> bool:
        """Are there fewer files than splits."""
        return self.folds is None and len(named) < len(self._asked_for)

    def load(self) -> Splits:
        named = self._named()
        is_cut = self._is_cut(named)
        numbers = {} if is_cut else self._numbers(named)
        path = token_file([path for _, path in named], self.vocabulary, self.cache_dir)
        starts = numpy.load(path.with_suffix(".npy"))
        parts = self._cut(starts[-1] + 1) if is_cut else {split: _documents(starts, of) for split, of in numbers.items()}
        return Splits(**{split: self._windows(path, split, parts.get(split)) for split in ("train", "val", "test")})

    def files(self) -> dict[str, list[Path]]:
        """Returns train, val and test. Raises ConfigError where one that is asked for, or train, would be empty."""
        named = self._named()
        return {split: [named[number][1] for number in numbers] for split, numbers in self._numbers(named).items()}

    def _named(self) -> list[tuple[str, Path]]:
        return [*standard_library().items()] if self.paths is None else _list_files(self.paths, self.suffixes)

    @property
    def _asked_for(self) -> list[str]:
        is_asked_for = {"val": self.folds is not None or self.val_fraction > 0, "test": self.has_test, "train": True}
        return [split for split, asked in is_asked_for.items() if asked]

    def _numbers(self, named: Sequence[tuple[str, Path]]) -> dict[str, list[int]]:
        """Which of the files each split has."""
        numbers: dict[str, list[int]] = {"train": [], "val": [], "test": []}
        for number, (name, _) in enumerate(named):
            numbers[self._choose_split(name)].append(number)
        for split in (split for split in self._asked_for if not numbers[split]):
            accepted = f"of {len(named)} files none is for {split}; accepted are more files, or fractions of 0 for val and test"
            raise config_error("datamodule.paths", self.paths, accepted)
        return numbers

    def _choose_split(self, name: str) -> str:
        if _fraction(name) < self.test_fraction:
            return "test"
        share = _fraction(f"{self.seed} {name}")
        is_val = share < self.val_fraction if self.folds is None else int(share * self.folds) == self.fold
        return "val" if is_val else "train"

    def _cut(self, length: int) -> dict[str, numpy.ndarray]:
        """So many tokens in a part for each split."""
        begins = [round(length * (1 - held_out)) for held_out in (self.val_fraction + self.test_fraction, self.test_fraction)]
        cuts = zip(("train", "val", "test"), (0, *begins), (*begins, length), strict=True)
        parts = {split: numpy.array([[begin, end]]) for split, begin, end in cuts if split in self._asked_for}
        for split, part in parts.items():
            if part[0, 1] - part[0, 0] < 2:
                accepted = f"of {length} tokens too few are for {split}; accepted are more, or other fractions for val and test"
                raise config_error("datamodule.paths", self.paths, accepted)
        return parts

    def _windows(self, path: Path, split: str, parts: numpy.ndarray | None) -> Windows | None:
        if parts is None:
            return None
        return Windows(path, self.vocabulary, parts, self.context, 0 if split == "train" else self.overlap)


def _documents(starts: numpy.ndarray, numbers: Sequence[int]) -> numpy.ndarray | None:
    """The parts of the token file that are these documents, and the separator at its end."""
    ends = numpy.append(starts[1:], starts[-1] + 1)
    return numpy.column_stack((starts, ends))[[*numbers, -1]] if numbers else None


def standard_library() -> dict[str, Path]:
    """The Python sources of this interpreter's standard library by their paths within it, sorted by these."""
    return _below(Path(sysconfig.get_path("stdlib")), (".py",), LEFT_OUT)


def _list_files(paths: Sequence[str], suffixes: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Files, each once, with their names: those below the folder that they were found in."""
    named: dict[Path, tuple[str, Path]] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise config_error("datamodule.paths", path, f"no such file or folder: {path.absolute()}; accepted are text files")
        files = {path.name: path} if path.is_file() else _below(path, suffixes)
        if not files:
            wanted = ", ".join(suffixes)
            raise config_error("datamodule.paths", path, f"has no {wanted} in it; others are found by datamodule.suffixes=[...]")
        for name, file in files.items():
            named.setdefault(file.resolve(), (name, file))
    return [*named.values()]


def _below(folder: Path, suffixes: tuple[str, ...], left_out: Collection[str] = ()) -> dict[str, Path]:
    """The files in a folder and those within it, but for some of these, by their paths below it."""
    files = []
    for parent, folders, names in os.walk(folder):
        folders[:] = set(folders) - set(left_out)
        files += [Path(parent, name) for name in names if name.endswith(suffixes)]
    return {path.relative_to(folder).as_posix(): path for path in sorted(files)}


def _fraction(name: str) -> float:
    """From 0 to 1, by the name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6]) / 2**48
