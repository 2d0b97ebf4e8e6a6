"""Image files as tensors."""

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from image_files import write_image, write_noise
from PIL import Image
from torchvision.transforms import v2

from lockstep.datamodules.image_folder import decode
from lockstep.errors import ConfigError


@pytest.mark.parametrize(
    ("mode", "color", "expected"),
    [("L", 90, (90, 90, 90)), ("RGBA", (10, 20, 30, 255), (10, 20, 30))],
)
def test_images_of_every_mode_become_rgb(mode: str, color: Any, expected: tuple[int, int, int], tmp_path: Path) -> None:
    image = decode(write_image(tmp_path / "image.png", mode=mode, color=color), (3, 6, 6))
    assert image.shape == (3, 6, 6)
    assert [set(channel.flatten().tolist()) for channel in image] == [{value} for value in expected]


def test_a_16_bit_grey_image_keeps_its_greys(tmp_path: Path) -> None:
    levels = numpy.tile(numpy.linspace(1000, 65_000, 8).astype(numpy.uint16), (8, 1))
    Image.fromarray(levels).save(tmp_path / "image.png")
    row = decode(tmp_path / "image.png", (3, 8, 8))[0, 0].int()
    assert (row.diff() > 0).all()


@pytest.mark.parametrize(("width", "height"), [(640, 480), (5, 7)])
def test_pixels_are_those_of_torchvision_s_resize_and_crop(width: int, height: int, tmp_path: Path) -> None:
    pixels = numpy.random.default_rng(0).integers(256, size=(height, width, 3), dtype=numpy.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    plain = v2.Compose([v2.Resize(32, antialias=True), v2.CenterCrop(32)])
    assert torch.equal(decode(tmp_path / "image.png", (3, 32, 32)), plain(torch.from_numpy(pixels).permute(2, 0, 1)))


@pytest.mark.parametrize("kept", [0, 400])
def test_a_jpeg_that_is_cut_is_refused_by_its_name(kept: int, tmp_path: Path) -> None:
    [path] = write_noise(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ConfigError, match=rf"^{path}: not a readable image \(.+\)$"):
        decode(path, (3, 8, 8))
