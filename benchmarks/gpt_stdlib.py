"""Bits per byte of what experiment=gpt_stdlib tests on, by other means: the table of benchmarks/gpt_stdlib.md.

    python benchmarks/gpt_stdlib.py RUN_DIR > benchmarks/gpt_stdlib.md

- xz: Python's lzma at preset 9 | EXTREME, on the test files one after the other; alone, and by how much the training files
  become longer when the test files follow them.
- 5-gram: bytes counted on the training files, interpolated with shorter contexts as Witten and Bell do (Chen and Goodman
  1998, section 2.6); all that there are, and so many of the most frequent as take the memory of the net's weights, at 8 bytes
  each.

The net and the 5-grams predict the end of each file too, and pay for it. The net's is what the run has tested, or what the last
scripts/evaluate.py RUN_DIR has.
"""

import json
import lzma
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy
from hardware import processor
from omegaconf import OmegaConf

from lockstep.config.construct import construct
from lockstep.extras.saved_runs.saved import saved_config

ORDER = 5
BYTES_PER_ENTRY = 8  # five for the n-gram, three for its count; sums of a context follow from these


def main() -> None:
    run_dir = Path(sys.argv[1])
    evaluated = sorted(run_dir.glob("evaluations/*/metrics.json"))
    record = json.loads((evaluated[-1] if evaluated else run_dir / "metrics.json").read_text())
    cfg = saved_config(run_dir, [])
    datamodule = construct("datamodule", OmegaConf.to_container(cfg.datamodule, resolve=True))
    files, splits, size = datamodule.files(), datamodule.splits, datamodule.vocabulary.size
    train, test = (b"".join(path.read_bytes() for path in files[split]) for split in ("train", "test"))
    weights = 4 * record["parameters"]

    grams = Grams(numpy.asarray(splits.train.row, numpy.int64), size)
    row = numpy.asarray(splits.test.row, numpy.int64)
    few = grams.most_frequent(weights // BYTES_PER_ENTRY)
    alone, primed = len(compressed(test)), len(compressed(train + test)) - len(compressed(train))
    rows: list[tuple[str, float, int | None]] = [
        ("xz -9e, the test files alone", 8 * alone / len(test), None),
        ("xz -9e, after the training files", 8 * primed / len(test), None),
        ("5-gram, the most frequent entries", few.bits(row) / len(test), BYTES_PER_ENTRY * few.entries),
        ("5-gram, all entries", grams.bits(row) / len(test), BYTES_PER_ENTRY * grams.entries),
        ("experiment=gpt_stdlib", record["metrics"]["test/bits_per_byte"], weights),
    ]
    print(f"`python benchmarks/gpt_stdlib.py RUN_DIR`; Python {platform.python_version()}, torch {version('torch')},")
    print(f"on {processor()}. The standard library of that Python: {len(files['train'])} files of {len(train):,} bytes to train")
    print(f"on, {len(files['test'])} of {len(test):,} bytes to test on, whole files that training has not seen.\n")
    print("| | bits per byte | bytes of weights or counts |\n|---|---|---|")
    for name, bits, memory in rows:
        print(f"| {name} | {bits:.3f} | {'' if memory is None else f'{memory:,}'} |")


def compressed(text: bytes) -> bytes:
    return lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)


class Grams:
    """Counts of the n-grams of a row of tokens, n from 1 to ORDER, each a number in base `size`."""

    def __init__(self, row: numpy.ndarray, size: int, tables: list[tuple[Any, Any]] | None = None) -> None:
        self.row, self.size = row, size
        counted = (numpy.unique(numbers(row, size, n), return_counts=True) for n in range(1, ORDER + 1))
        self.tables = list(counted) if tables is None else tables

    @property
    def entries(self) -> int:
        return sum(len(grams) for grams, _ in self.tables)

    def most_frequent(self, entries: int) -> "Grams":
        """With so many of the entries; of those as frequent as each other, the shorter ones."""
        counts = numpy.concatenate([counts for _, counts in self.tables])
        kept = numpy.zeros(len(counts), bool)
        kept[numpy.argsort(-counts, kind="stable")[:entries]] = True
        masks = numpy.split(kept, numpy.cumsum([len(counts) for _, counts in self.tables])[:-1])
        tables = [(grams[mask], counts[mask]) for mask, (grams, counts) in zip(masks, self.tables, strict=True)]
        return Grams(self.row, self.size, tables)

    def bits(self, row: numpy.ndarray) -> float:
        """That it takes to say each token of a row but the first."""
        targets = numpy.arange(1, len(row))
        grams, counts = self.tables[0]
        probability = (look_up(grams, counts, row[targets]) + 1) / (counts.sum() + self.size)
        for n, (grams, counts) in enumerate(self.tables[1:], start=2):
            contexts, first = numpy.unique(grams // self.size, return_index=True)
            sums = numpy.add.reduceat(counts, first)
            kinds = numpy.diff([*first, len(grams)])
            known = targets >= n - 1
            gram = numbers(row, self.size, n)
            total, different = (look_up(contexts, values, gram // self.size) for values in (sums, kinds))
            own = look_up(grams, counts, gram)
            seen = total > 0
            shorter = probability[known]
            probability[known] = numpy.where(seen, (own + different * shorter) / numpy.maximum(total + different, 1), shorter)
        return -float(numpy.log2(probability).sum())


def numbers(row: numpy.ndarray, size: int, n: int) -> numpy.ndarray:
    """The number of the n-gram that ends at each token from the n-th on."""
    value = numpy.zeros(len(row) - n + 1, numpy.int64)
    for i in range(n):
        value = value * size + row[i : len(row) - n + 1 + i]
    return value


def look_up(keys: numpy.ndarray, values: numpy.ndarray, wanted: numpy.ndarray) -> numpy.ndarray:
    """The values of the wanted keys, 0 for those that are not there."""
    places = numpy.minimum(numpy.searchsorted(keys, wanted), len(keys) - 1)
    return numpy.where(keys[places] == wanted, values[places], 0)


if __name__ == "__main__":
    main()
