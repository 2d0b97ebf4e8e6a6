"""Texts as windows of tokens: every token once, files whole in one split, and one writer."""

import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from lockstep.errors import ConfigError
from lockstep.extras.language import tokens as packing
from lockstep.extras.language.text import Text, standard_library
from lockstep.extras.language.tokens import NOT_COUNTED, Windows, token_file
from lockstep.extras.language.vocabulary import Bytes

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


@pytest.mark.parametrize("overlap", [0, 3])
@pytest.mark.parametrize("context", [5, 64])
def test_every_token_is_the_target_of_one_window_after_those_before_it(folder: Path, context: int, overlap: int) -> None:
    if overlap >= context:
        pytest.skip("a window would predict nothing")
    path = token_file([folder / name for name in ("a.txt", "sub/d.py", "b.txt")], Bytes(), folder)
    windows = Windows(path, Bytes(), numpy.array([[0, 7], [14, 18]]), context, overlap)  # without d.py
    row = [256, *b"abcdef", 256, *b"gh", 256]
    assert windows.row.tolist() == row
    inputs, targets = windows.__getitems__(list(range(len(windows))))
    assert inputs.shape == targets.shape == (len(windows), context)
    assert [int(t) for t in targets.flatten() if t != NOT_COUNTED] == row[1:]
    for index, (given, wanted) in enumerate(zip(inputs.tolist(), targets.tolist(), strict=True)):
        begin = index * (context - overlap)
        for place, target in enumerate(wanted):
            if target != NOT_COUNTED:
                assert given[: place + 1] == row[begin : begin + place + 1]
                assert target == row[begin + place + 1]
                assert index == 0 or place >= overlap
    single = windows[len(windows) - 1]
    assert all(torch.equal(one, many[-1]) for one, many in zip(single, (inputs, targets), strict=True))


def test_files_come_in_the_order_of_their_paths_each_after_a_separator(folder: Path) -> None:
    datamodule = text(folder)
    assert datamodule.splits.train.row.tolist() == [256, *b"abcdef", 256, *b"gh", 256, 256, *b"ijklm\n", 256]
    assert datamodule.describe() == {"train": 4, "val": 0, "test": 0}
    assert (datamodule.spec.input_shape, datamodule.spec.num_outputs) == ((5,), 257)
    assert (datamodule.token_bytes.tolist(), datamodule.separator) == ([1] * 256 + [0], 256)
    assert datamodule.vocabulary.decode([256, *"naïve".encode(), 256]) == "naïve"


def test_a_file_is_written_once_and_anew_when_a_text_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = text(folder).splits.train
    with monkeypatch.context() as patch:
        patch.setattr(packing, "_write", None)
        again = pickle.loads(pickle.dumps(text(folder).splits.train))
    assert again.row.tolist() == first.row.tolist()
    (folder / "b.txt").write_bytes(b"xyz")
    assert text(folder).splits.train.row.tolist()[8:11] == [*b"xyz"]
    assert first.row.tolist()[8:10] == [*b"gh"]  # who has mapped the old one keeps it


def split_names(datamodule: Text) -> dict[str, set[str]]:
    return {name: {path.name for path in files} for name, files in datamodule.files().items()}


def test_whole_files_are_held_out_by_a_hash_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in range(200):
        (tmp_path / "texts" / f"{number}.txt").write_text(str(number))
    fractions = {"val_fraction": 0.2, "test_fraction": 0.2}
    one, other = (split_names(text(tmp_path / "texts", **fractions, seed=seed)) for seed in (0, 1))
    assert sum(map(len, one.values())) == len(set.union(*one.values())) == 200
    assert one["test"] == other["test"]
    assert one["val"] != other["val"]
    assert all(25 <= len(result[split]) <= 55 for result in (one, other) for split in ("val", "test"))
    for name in list(one["train"])[:100]:
        (tmp_path / "texts" / name).unlink()
    fewer = split_names(text(tmp_path / "texts", **fractions))
    assert (fewer["val"], fewer["test"]) == (one["val"], one["test"])
    folds = [split_names(text(tmp_path / "texts", test_fraction=0.2, folds=3, fold=fold))["val"] for fold in range(3)]
    assert set.union(*folds) == fewer["train"] | fewer["val"]
    assert sum(map(len, folds)) == len(set.union(*folds))


def test_fewer_files_than_splits_are_cut_by_their_place_in_the_text(tmp_path: Path) -> None:
    """One of 200 bytes, between two separators."""
    content = bytes(range(200))
    (tmp_path / "input.txt").write_bytes(content)
    one = [str(tmp_path / "input.txt")]
    splits = text(tmp_path, paths=one, val_fraction=0.1, test_fraction=0.2).splits
    assert splits.train.row.tolist() == [256, *content[:140]]
    assert splits.val.row.tolist() == [*content[140:161]]  # round(202 * 0.8) = 162
    assert splits.test.row.tolist() == [*content[161:], 256]
    assert text(tmp_path, paths=one, val_fraction=0.1).describe() == {"train": 37, "val": 4, "test": 0}
    with pytest.raises(ConfigError, match=r"^datamodule.paths=.*: of 202 tokens too few are for val; accepted are more, or oth"):
        text(tmp_path, paths=one, val_fraction=0.005).prepare_data()
    with pytest.raises(ConfigError, match=r"^datamodule.paths=.*: of 1 files none is for val; accepted are more files"):
        text(tmp_path, paths=one, folds=5, fold=1).prepare_data()


def test_the_standard_library_is_there_without_its_tests() -> None:
    result = standard_library()
    assert {"argparse.py", "json/decoder.py", "collections/__init__.py"} <= set(result)
    assert list(result) == sorted(result, key=lambda name: Path(name).parts)
    assert not [name for name in result if {"test", "site-packages", "encodings"} & {*Path(name).parts[:-1]}]
    assert sum(path.stat().st_size for path in result.values()) > 2_000_000


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"paths": ["nowhere"]}, "datamodule.paths=nowhere: no such file or folder: "),
        ({"val_fraction": 1e-9}, "datamodule.paths=['{folder}']: of 4 files none is for val; accepted are more files, or "),
        ({"standardize": True}, "datamodule.standardize=true: tokens are no numbers to scale; accepted is false"),
    ],
)
def test_what_can_not_be_is_one_line(folder: Path, options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        text(folder, **options).files()
    assert str(refused.value).startswith(line.format(folder=folder))


def test_a_file_of_tokenizers(folder: Path, tmp_path: Path) -> None:
    """Of bytes joined, as GPT-2's: its tokens stand for the bytes of the text, whatever characters these are."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(["naïve abc abc abc"] * 3, vocab_size=262, min_frequency=1, special_tokens=["<end>"])
    made.save(str(tmp_path / "t.json"))
    (folder / "b.txt").write_text("naïve abc <")
    datamodule = text(folder, tokenizer=str(tmp_path / "t.json"), paths=[str(folder / "b.txt")])
    tokens = datamodule.splits.train.row.tolist()
    assert datamodule.spec.num_outputs == datamodule.vocabulary.size == 263
    assert tokens[0] == tokens[-1] == datamodule.vocabulary.separator == 262
    assert datamodule.vocabulary.decode(tokens) == "naïve abc <"
    assert len(tokens) - 2 < len("naïve abc <".encode()) == int(datamodule.token_bytes[torch.tensor(tokens)].sum())
    named = text(folder, tokenizer=str(tmp_path / "t.json"), separator="<end>")
    assert (named.separator, named.spec.num_outputs) == (0, 262)
    with pytest.raises(ConfigError, match=r"^datamodule.separator=nothing: accepted is a token of .*t.json, or null$"):
        text(folder, tokenizer=str(tmp_path / "t.json"), separator="nothing")
