"""Files that other programs read while they are replaced: the old content or the new, never a part."""

import json
import math
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, content: dict[str, Any]) -> None:
    """As replace_text does. NaN and infinity, which JSON does not have, become null."""
    replace_text(path, json.dumps(_finite(content), indent=2, allow_nan=False) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Replaces `path` in one step: a reader sees the old content or the new, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def read_json(path: Path) -> dict[str, Any] | None:
    """The file's content; None where there is no such file."""
    return json.loads(path.read_text()) if path.is_file() else None
