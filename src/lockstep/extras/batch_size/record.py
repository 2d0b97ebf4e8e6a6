"""What the record of a run says of batches that were too large."""

from collections.abc import Sequence
from typing import Any

from lightning import Callback


class OutOfMemory(Callback):
    """Adds the sizes, in samples of a process at once, that were out of memory while the run trained."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = [*sizes]

    def facts(self) -> dict[str, Any]:
        return {"batch_sizes_out_of_memory": self.sizes}
