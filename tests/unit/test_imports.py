import contextlib
import gc

import pytest

from lockstep.imports import importing_much


@pytest.mark.parametrize("was_enabled", [True, False])
def test_garbage_is_collected_afterwards_as_it_was_before(was_enabled: bool) -> None:
    collects: list[bool] = []
    (gc.enable if was_enabled else gc.disable)()
    try:
        with contextlib.suppress(ImportError), importing_much():
            collects.append(gc.isenabled())
            raise ImportError
        collects.append(gc.isenabled())
    finally:
        is_frozen = gc.get_freeze_count() > 0
        gc.unfreeze()
        gc.enable()
    assert collects == [False, was_enabled]
    assert is_frozen == was_enabled  # no collection looks at what was imported; a process without collections has it as it wants
