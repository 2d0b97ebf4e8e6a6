"""What a search brings to a report; imports nothing heavy, because every sweep's report asks."""

from pathlib import Path
from typing import Any

from lockstep.extras.search.files import SEARCH


def search_page(sweep_dir: Path) -> dict[str, Any] | None:
    """Returns the page of a search, or None if the sweep is none."""
    if not (sweep_dir / SEARCH).is_file():
        return None
    from lockstep.extras.search.trials_page import trials_page

    return trials_page(sweep_dir)
