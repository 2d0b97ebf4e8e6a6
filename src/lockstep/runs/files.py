"""By what a file is told from the next of its name."""

from pathlib import Path

Stamp = tuple[int, int, int]


def stamp_of(path: Path) -> Stamp | None:
    """Another one when a file is replaced or appended to, whatever the clock says; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def stamps_of_checkpoints(run_dir: Path) -> dict[str, Stamp | None]:
    return {path.name: stamp_of(path) for path in run_dir.glob("checkpoints/*.ckpt")}
