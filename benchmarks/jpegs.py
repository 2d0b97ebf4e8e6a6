"""JPEGs for the benchmark of loading, made once and kept in the folder for temporary files."""

import functools
import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path

import numpy
from PIL import Image, ImageDraw

COUNT, SIZE, CLASSES = 10_000, 256, 10


def jpegs() -> Path:
    """The folder, with a folder for each of ten classes: 10,000 pictures of 256x256, 17 KB each."""
    folder = Path(tempfile.gettempdir()) / f"lockstep_benchmark_{COUNT}_jpegs"
    if not folder.is_dir():
        making = folder.with_name(f"{folder.name}.{os.getpid()}")
        for number in range(CLASSES):
            (making / f"class_{number}").mkdir(parents=True)
        try:
            with multiprocessing.get_context("spawn").Pool() as pool:
                pool.map(functools.partial(_make, making), range(COUNT), chunksize=100)
            making.rename(folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return folder


def _make(folder: Path, number: int) -> None:
    """Soft clouds of colour, a few shapes with sharp edges, and a camera's noise; of that number alone."""
    dice = numpy.random.default_rng(number)
    picture = Image.fromarray(dice.integers(0, 256, (8, 8, 3), dtype=numpy.uint8)).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture)
    for _ in range(12):
        x, y, width, height = (int(value) for value in dice.integers(0, SIZE, 4))
        color = tuple(int(value) for value in dice.integers(0, 256, 3))
        (draw.ellipse if dice.random() < 0.5 else draw.rectangle)((x, y, x + width // 3, y + height // 3), fill=color)
    top, left = dice.integers(0, SIZE, 2)
    noisy = numpy.asarray(picture) + _noise()[top : top + SIZE, left : left + SIZE]
    path = folder / f"class_{number % CLASSES}" / f"{number:05}.jpg"
    Image.fromarray(noisy.clip(0, 255).astype(numpy.uint8)).save(path, quality=90)


@functools.cache
def _noise() -> numpy.ndarray:
    """Of which each picture gets a part."""
    return numpy.random.default_rng(0).normal(0, 10, (2 * SIZE, 2 * SIZE, 3)).astype(numpy.int16)
