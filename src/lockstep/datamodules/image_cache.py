"""Images decoded once, into a file of bytes that every process of a machine maps into its memory."""

import hashlib
import inspect
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lockstep.atomic_files import replacing
from lockstep.datamodules.base import Splits, ignore_sigterm
from lockstep.datamodules.batches import rows
from lockstep.datamodules.file_cache import write_once
from lockstep.datamodules.image_folder import ImageFolder, LabelledImages, decode
from lockstep.launchers.environment import cores

log = logging.getLogger(__name__)


class CachedImageFolder(ImageFolder):
    """An ImageFolder that decodes its images once, into files in `cache_dir`, by default DATA_DIR.cache beside the data."""

    def __init__(self, data_dir: str, cache_dir: str | None = None, num_workers: int = 0, **options: Any) -> None:
        super().__init__(data_dir, num_workers=num_workers, **options)
        beside = self.data_dir.absolute()
        self.cache_dir = beside.with_name(f"{beside.name}.cache") if cache_dir is None else Path(cache_dir)

    def prepare_data(self) -> None:
        """Decode the images, with one process per core."""
        self.load()

    def load(self) -> Splits:
        """Map the images of each split."""
        mapped = {name: cached(images, self.spec.input_shape, self.cache_dir) for name, images in self.images.items()}
        return self.drawn(**mapped, test_fraction=self.test_fraction)


class Mapped(TensorDataset):
    """Samples whose inputs are a memory-mapped file of bytes, which forked processes share."""

    def __init__(self, path: Path, shape: Sequence[int], targets: Tensor) -> None:
        pixels = numpy.memmap(path, numpy.uint8, "c", shape=(len(targets), *shape))  # "r" makes torch warn
        super().__init__(torch.from_numpy(pixels), targets)

    def __getitems__(self, ids: Sequence[int]) -> tuple[Tensor, ...]:
        return rows(self, torch.as_tensor(ids))


def cached(images: LabelledImages, shape: Sequence[int], folder: Path) -> Mapped:
    """Return the images with `shape` (channels, height, width) from a file in `folder`, which is written if it is missing. Its
    name depends on the image files' names, sizes and times, and on the code that decodes them."""
    paths = [Path(path) for path, _ in images.samples]
    files = [(str(path.relative_to(images.root)), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    key = hashlib.sha256(repr((files, Path(inspect.getfile(decode)).read_text())).encode()).hexdigest()[:16]
    path = folder / f"{Path(images.root).absolute().name}-{'x'.join(map(str, shape))}-{key}.uint8"
    write_once(path, lambda: _write(path, images))
    return Mapped(path, shape, torch.tensor(images.targets))


def _write(path: Path, images: LabelledImages) -> None:
    log.info(f"decoding {len(images)} images of {images.root} into {path}")
    with replacing(path, "wb") as file:
        for pixels, _ in DataLoader(images, 32, num_workers=len(cores()), worker_init_fn=ignore_sigterm):
            file.write(pixels.numpy().tobytes())
