"""Texts as windows of tokens: every token once, and one writer."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.language import tokens as packing
from lockstep.language.text import Text
from lockstep.language.tokens import NOT_COUNTED, Vocabulary, Windows, token_file

TEXTS = {"a.txt": b"abcdef", "b.txt": b"gh", "c.md": b"", "sub/d.py": b"ijklm\n", "e.bin": b"\xff"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "texts" / "sub").mkdir(parents=True)
    for name, content in TEXTS.items():
        (tmp_path / "texts" / name).write_bytes(content)
    return tmp_path / "texts"


def text(folder: Path, **options: Any) -> Text:
    cache = folder.with_name("cache")
    fractions = {"val_fraction": 0.0, "test_fraction": 0.0}
    return Text(**{"paths": [str(folder)], "context": 5, "cache_dir": str(cache), **fractions, **options})


@pytest.mark.parametrize("context", [5, 64])
def test_every_token_is_the_target_of_one_window_after_those_before_it(folder: Path, context: int) -> None:
    path = token_file([folder / name for name in ("a.txt", "b.txt")], Vocabulary(), folder)
    windows = Windows(path, slice(2, None), context)
    row = [*b"bcdef", 256, *b"gh", 256]
    assert windows.row.tolist() == row
    inputs, targets = windows.__getitems__(list(range(len(windows))))
    assert inputs.shape == targets.shape == (len(windows), context)
    assert [int(t) for t in targets.flatten() if t != NOT_COUNTED] == row[1:]
    for index, (given, wanted) in enumerate(zip(inputs.tolist(), targets.tolist(), strict=True)):
        begin = index * context
        for place, target in enumerate(wanted):
            if target != NOT_COUNTED:
                assert given[: place + 1] == row[begin : begin + place + 1]
                assert target == row[begin + place + 1]


def test_files_come_in_the_order_of_their_paths_each_after_a_separator(folder: Path) -> None:
    datamodule = text(folder)
    assert datamodule.splits.train.row.tolist() == [256, *b"abcdef", 256, *b"gh", 256, 256, *b"ijklm\n", 256]
    assert datamodule.describe() == {"train": 4, "val": 0, "test": 0}
    assert (datamodule.spec.input_shape, datamodule.spec.num_outputs) == ((5,), 257)
    assert Vocabulary().decode([*"naïve".encode()]) == "naïve"


def test_a_file_is_written_once_and_anew_when_a_text_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = text(folder).splits.train
    with monkeypatch.context() as patch:
        patch.setattr(packing, "_write", None)
        again = text(folder).splits.train
    assert again.row.tolist() == first.row.tolist()
    (folder / "b.txt").write_bytes(b"xyz")
    assert text(folder).splits.train.row.tolist()[8:11] == [*b"xyz"]
    assert first.row.tolist()[8:10] == [*b"gh"]  # the old file is still mapped


def test_the_splits_are_parts_of_the_text(tmp_path: Path) -> None:
    """One file of 200 bytes, between two separators."""
    content = bytes(range(200))
    (tmp_path / "input.txt").write_bytes(content)
    splits = text(tmp_path, paths=[str(tmp_path / "input.txt")], val_fraction=0.1, test_fraction=0.2).splits
    assert splits.train.row.tolist() == [256, *content[:140]]
    assert splits.val.row.tolist() == [*content[140:161]]  # round(202 * 0.8) = 162
    assert splits.test.row.tolist() == [*content[161:], 256]
