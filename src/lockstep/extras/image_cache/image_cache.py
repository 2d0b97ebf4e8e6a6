"""Images decoded once, into a file of bytes that every process of a machine maps into its memory.

The file is named after all that its pixels depend on, so it is never out of date; and it appears under that name when it is
whole, so that one which was interrupted is not taken for it.
"""

import hashlib
import json
import logging
import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import PIL
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lockstep.atomic_files import replacing
from lockstep.config.plan import visible_cores
from lockstep.console import join_first
from lockstep.datamodules.batches import InMemory
from lockstep.datamodules.loaders import ignore_sigterm
from lockstep.datamodules.splits import Splits
from lockstep.errors import ConfigError, config_error
from lockstep.extras.file_cache.file_cache import write_once
from lockstep.extras.images import decoding
from lockstep.extras.images.image_folder import ImageFolder

log = logging.getLogger(__name__)

CHUNK = 32  # images that a worker decodes at a time


class UnreadableImages(ConfigError):
    """`problems` has a line for each."""

    def __init__(self, folder: str | Path, problems: Sequence[str]) -> None:
        count = f"{len(problems)} unreadable image{'s' * (len(problems) > 1)}"
        super().__init__(f"datamodule.data_dir={folder}: has {count}: {join_first(problems)}")
        self.problems = problems


class CachedImageFolder(ImageFolder):
    """An ImageFolder whose images are decoded once, into files in `cache_dir`; null: DATA_DIR.cache, beside the data."""

    def __init__(self, data_dir: str, cache_dir: str | None = None, num_workers: int = 0, **options: Any) -> None:
        super().__init__(data_dir, num_workers=num_workers, **options)
        beside = self.data_dir.absolute()
        self.cache_dir = beside.with_name(f"{beside.name}.cache") if cache_dir is None else Path(cache_dir)

    def check_images(self) -> None:
        self.pack()

    def load(self) -> Splits:
        return self.draw_splits(self.pack())

    def pack(self, workers: int | None = None) -> dict[str, "Mapped"]:
        """Returns the folders' images from the cache, decoded where that has not been done yet by `workers` processes, or one
        a core. Raises UnreadableImages for all that can't be."""
        packed, problems = dict[str, Mapped](), list[str]()
        for name, images in self.folders.items():
            try:
                packed[name] = cached(images.root, images.samples, self.spec.input_shape, self.cache_dir, workers)
            except UnreadableImages as error:
                problems += error.problems
        if problems:
            raise UnreadableImages(self.data_dir, problems)
        return packed


class Mapped(InMemory):
    """Samples whose inputs are a file of bytes. A process that gets a pickled copy maps the file again."""

    def __init__(self, path: Path, shape: Sequence[int], targets: Tensor) -> None:
        self.path, self.shape = path, tuple(shape)
        pixels = numpy.memmap(path, numpy.uint8, "r", shape=(len(targets), *self.shape))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            super().__init__(torch.from_numpy(pixels), targets)

    def __reduce__(self) -> tuple[Any, ...]:
        return Mapped, (self.path, self.shape, self.targets)


def cached(
    root: str | Path, samples: Sequence[tuple[str, int]], shape: Sequence[int], folder: Path, workers: int | None = None
) -> Mapped:
    """The images `samples` below `root`, pairs of path and class number, as (channels, height, width) of `shape`: from a file
    in `folder`, which is written now by so many `workers`, or one per core, if it is not there.

    Raises UnreadableImages, and ConfigError where the folder can't be written to.
    """
    paths, targets = [path for path, _ in samples], torch.tensor([target for _, target in samples])
    path = folder / f"{Path(root).absolute().name}-{'x'.join(map(str, shape))}-{_key(root, paths, shape)}.uint8"
    workers = visible_cores() if workers is None else workers
    try:
        write_once(path, lambda: _write(path, root, paths, shape, workers))
    except OSError as error:
        raise _unwritable(folder, error) from error
    return Mapped(path, shape, targets)


def _key(root: str | Path, paths: Sequence[str], shape: Sequence[int]) -> str:
    """Returns a digest of the files' names, sizes and times, and of what decodes them: the code and its libraries."""
    try:
        stats = [(path, Path(path).stat()) for path in paths]
    except OSError as error:
        raise config_error("datamodule.data_dir", error.filename, f"not a readable image ({error.strerror})") from error
    files = [(str(Path(path).relative_to(root)), stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    code = Path(decoding.__file__).read_text()
    text = json.dumps([files, list(shape), code, PIL.__version__, str(torch.__version__)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(path: Path, root: str | Path, paths: Sequence[str], shape: Sequence[int], workers: int) -> None:
    gib = len(paths) * math.prod(shape) / 2**30
    log.info(f"decoding {len(paths)} images of {root} into {path} ({gib:.2f} GiB)")
    with replacing(path, "wb") as file:
        chunks = _Chunks(paths, shape, Path(file.name))
        workers = workers if len(chunks) > 1 else 0
        loader = DataLoader(chunks, None, num_workers=workers, collate_fn=list, worker_init_fn=ignore_sigterm)
        parts = iter(loader)  # starts the workers, before the bar starts a thread
        bar = track(parts, "decoding", len(chunks), console=Console(stderr=True), disable=not sys.stderr.isatty())
        problems = [problem for part in bar for problem in part]
        if problems:
            raise UnreadableImages(root, problems)


class _Chunks(Dataset[list[str]]):
    """Each item writes some of the images to their place in a file, and is what is wrong with those that can't be read."""

    def __init__(self, paths: Sequence[str], shape: Sequence[int], file: Path) -> None:
        self.paths, self.shape, self.file = paths, shape, file

    def __len__(self) -> int:
        return math.ceil(len(self.paths) / CHUNK)

    def __getitem__(self, index: int) -> list[str]:
        first, problems = index * CHUNK, []
        try:
            with self.file.open("r+b") as file:
                file.seek(first * math.prod(self.shape))
                for path in self.paths[first : first + CHUNK]:
                    try:
                        file.write(decoding.decode(path, self.shape).numpy().tobytes())
                    except ConfigError as error:
                        problems.append(str(error))
        except OSError as error:  # torch would raise it again without its number
            raise _unwritable(self.file.parent, error) from error
        return problems


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    accepted = "accepted is a folder with room for all images as bytes, or datamodule=image_folder"
    return config_error("datamodule.cache_dir", folder, f"can't be written ({error.strerror or error}); {accepted}")
