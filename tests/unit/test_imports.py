import contextlib
import gc
from pathlib import Path

import pytest
from commands import python

from lockstep.imports import importing_much


@pytest.mark.parametrize("was_enabled", [True, False])
def test_garbage_is_collected_afterwards_as_it_was_before(was_enabled: bool) -> None:
    found: list[bool] = []
    (gc.enable if was_enabled else gc.disable)()
    try:
        with contextlib.suppress(ImportError), importing_much():
            found.append(gc.isenabled())
            raise ImportError
        found.append(gc.isenabled())
    finally:
        gc.enable()
    assert found == [False, was_enabled]


LOOKS = """
import sys
from lockstep.imports import importing_much
with importing_much():
    import lightning
    import lockstep.callbacks, lockstep.datamodules, lockstep.models, lockstep.nets
print([name for name in ("scipy.signal", "scipy.stats", "sklearn") if name in sys.modules])
lockstep.datamodules.Digits().splits
print("sklearn" in sys.modules)
import scipy.signal
print(scipy.signal is sys.modules["scipy.signal"], scipy.signal.butter(1, 0.5)[0].round(3).tolist())
from torchmetrics.audio import SignalNoiseRatio
"""


def test_what_training_does_not_need_is_not_imported_and_can_be_later(tmp_path: Path) -> None:
    done = python("-c", LOOKS, cwd=tmp_path)
    assert done.stdout.splitlines() == ["[]", "False", "True [0.5, 0.5]"], done.stderr
