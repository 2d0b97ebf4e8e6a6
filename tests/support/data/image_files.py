"""Image files in folders, as data sets are laid out."""

from pathlib import Path
from typing import Any

from PIL import Image


def write_image(path: Path, color: Any = (200, 100, 50), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (12, 10), color).save(path)
    return path


def write_noise(folder: Path, count: int) -> list[Path]:
    """Images of noise in classes a and b, no two alike; sorted, as they are found."""
    for i in range(count):
        path = folder / "ab"[i % 2] / f"{i:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((20 + i % 3, 18), 60 + i).convert("RGB").save(path)
    return sorted(folder.rglob("*.jpg"))


def write_class(folder: Path, name: str, count: int, suffix: str = ".png", color: Any = (200, 100, 50)) -> None:
    for i in range(count):
        write_image(folder / name / f"{i:02}{suffix}", color)


def write_classes(folder: Path, count: int) -> Path:
    """Classes cat (red) and dog (blue), of so many images each."""
    write_class(folder, "cat", count, color=(255, 0, 0))
    write_class(folder, "dog", count, ".jpg", color=(0, 0, 255))
    return folder


def write_split(folder: Path, **counts: int) -> Path:
    """The same in a folder for each split."""
    for split, count in counts.items():
        write_classes(folder / split, count)
    return folder
