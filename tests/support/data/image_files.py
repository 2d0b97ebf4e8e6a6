"""Image files in folders, as data sets are laid out."""

from pathlib import Path
from typing import Any

from PIL import Image


def write_image(path: Path, size: tuple[int, int] = (12, 10), color: Any = (200, 100, 50), mode: str = "RGB") -> Path:
    """Size is (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)
    return path


def write_noise(folder: Path, count: int, suffix: str = ".jpg") -> list[Path]:
    """Images of noise in classes a and b, no two alike; sorted, as they are found."""
    for i in range(count):
        path = folder / "ab"[i % 2] / f"{i:03}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((20 + i % 3, 18), 60 + i).convert("RGB").save(path)
    return sorted(folder.rglob(f"*{suffix}"))


def write_class(folder: Path, name: str, count: int, suffix: str = ".png", color: Any = (200, 100, 50)) -> None:
    for i in range(count):
        write_image(folder / name / f"{i:02}{suffix}", color=color)


def write_split(folder: Path, **counts: int) -> Path:
    """Classes cat (red) and dog (blue), as many of each in every split as asked for."""
    for split, count in counts.items():
        write_class(folder / split, "cat", count, color=(255, 0, 0))
        write_class(folder / split, "dog", count, ".jpg", color=(0, 0, 255))
    return folder


def flat(folder: Path, count: int) -> Path:
    write_class(folder, "cat", count, color=(255, 0, 0))
    write_class(folder, "dog", count, color=(0, 0, 255))
    return folder
