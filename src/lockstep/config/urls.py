"""URLs that are given where a folder or a file of this machine is meant."""

import re
from pathlib import Path

from lockstep.errors import config_error


def url_in(path: Path) -> str | None:
    """Returns the URL that was taken for a path, which makes one slash of two and may put a folder before it; or None."""
    parts = path.parts
    at = next((i for i, part in enumerate(parts) if re.fullmatch(r"[a-z][a-z0-9+.-]+:", part)), None)
    return None if at is None else f"{parts[at]}//{'/' if parts[at] == 'file:' else ''}{'/'.join(parts[at + 1 :])}"


def refuse_url(key: str, path: Path) -> None:
    """Raises ConfigError where a URL is given for what is read on this machine."""
    if (url := url_in(path)) is not None:
        raise config_error(key, url, "is read on this machine alone; accepted is a path, to which a copy was fetched before")
