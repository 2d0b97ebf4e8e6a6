"""Is a file that the config names a whole checkpoint? Asked without torch."""

import functools
import os
import re
import time
import zipfile
from pathlib import Path

from lockstep.errors import config_error

RUN_FILE = ".hydra/config.yaml"  # see lockstep.runs.saved


def split_step(value: str) -> tuple[Path, int | None]:
    """Returns the absolute path and the optimizer step of `PATH@STEP`; None for the step of a path alone."""
    match = None if Path(value).exists() else re.fullmatch(r"(.+)@(\d+)", value)
    path = Path(value if match is None else match[1]).expanduser()
    return Path(os.path.abspath(path)), None if match is None else int(match[2])  # noqa: PTH100  links are kept


def run_of(checkpoint: Path) -> Path:
    """Returns the directory of the run that a checkpoint is of: the nearest one above with a run's record, for Lightning's own
    ModelCheckpoint saves in its logger's folder; where there is none, the one that the checkpoint's folder is in."""
    above = checkpoint.parents[1:4]
    return next((place for place in above if (place / RUN_FILE).is_file()), checkpoint.parent.parent)


def check_checkpoint(key: str, path: Path) -> None:
    """A checkpoint must be there and be a whole zip archive, which is what torch.save writes."""
    if not path.is_file():
        refuse_url(key, path)
        accepted = f"no such file: {path.absolute()}; accepted is a checkpoint, RUN_DIR/checkpoints/best.ckpt say"
        raise config_error(key, path, accepted)
    try:
        stat = path.stat()
        first_damaged = _first_damaged.__wrapped__ if abs(time.time() - stat.st_mtime) < _SETTLED else _first_damaged
        damaged = first_damaged(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)
    except Exception as error:  # zipfile raises what it meets: BadZipFile, zlib.error, RuntimeError, ...
        raise config_error(key, path, f"not a readable checkpoint ({error})") from error
    if damaged is not None:
        raise config_error(key, path, f"the checkpoint is corrupt (at {damaged})")


_SETTLED = 2.0  # seconds after which a file that is changed once more has another time, on any file system


@functools.cache
def _first_damaged(path: Path, *_: int) -> str | None:
    """The first member whose checksum is wrong. Reads the whole file, so once a process: the same number, time and size are
    the same file."""
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()


def url_in(path: Path) -> str | None:
    """Returns the URL that was taken for a path, which makes one slash of two and may put a folder before it; or None."""
    parts = path.parts
    at = next((i for i, part in enumerate(parts) if re.fullmatch(r"[a-z][a-z0-9+.-]+:", part)), None)
    return None if at is None else f"{parts[at]}//{'/' if parts[at] == 'file:' else ''}{'/'.join(parts[at + 1 :])}"


def refuse_url(key: str, path: Path) -> None:
    """Raises ConfigError where a URL is given for what is read on this machine."""
    if (url := url_in(path)) is not None:
        raise config_error(key, url, "is read on this machine alone; accepted is a path, to which a copy was fetched before")
