import contextlib
import gc
import sys
from importlib.util import find_spec
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
import sys, torch
from pathlib import Path
from lockstep.imports import GPUS, importing_much
with importing_much():
    import lightning
    import lockstep.callbacks, lockstep.datamodules, lockstep.models, lockstep.nets
unused = ["scipy.signal", "scipy.stats", "sklearn", "matplotlib"]
unused += [] if any(Path(file).exists() for file in GPUS) else ["triton"]
print([name for name in unused if name in sys.modules])
lockstep.datamodules.Digits().splits
print("sklearn" in sys.modules)
import scipy.signal
print(scipy.signal is sys.modules["scipy.signal"], scipy.signal.butter(1, 0.5)[0].round(3).tolist())
from torchmetrics.audio import SignalNoiseRatio
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassConfusionMatrix
mean, confusion = MeanMetric(), MulticlassConfusionMatrix(2)
mean.update(1.0)
confusion.update(torch.tensor([0, 1]), torch.tensor([0, 1]))
import matplotlib.figure
print([isinstance(metric.plot()[0], matplotlib.figure.Figure) for metric in (mean, confusion)])
print(torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(1)).item())
"""


@pytest.mark.skipif(find_spec("transformers") is not None, reason="torchmetrics imports transformers, and that scikit-learn")
def test_what_training_does_not_need_is_not_imported_and_can_be_later(tmp_path: Path) -> None:
    done = python("-c", LOOKS, cwd=tmp_path)
    assert done.stdout.splitlines() == ["[]", "False", "True [0.5, 0.5]", "[True, True]", "2.0"], done.stderr
    assert "triton" not in done.stderr


@pytest.mark.parametrize(("gpu", "is_left_out"), [("/dev/none", sys.platform == "linux"), ("/", False)])
def test_triton_is_left_out_only_where_there_is_no_gpu(gpu: str, is_left_out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.setattr("lockstep.imports.GPUS", (gpu,))
    with importing_much():
        assert (sys.modules.get("triton", "") is None) == is_left_out
    assert "triton" not in sys.modules


ASKS = """
import scipy.signal
had = scipy.signal.hamming
from scipy.signal import butter
import scipy.signal.windows
from scipy import signal
"""
LOOKS_AGAIN = """
from lockstep.imports import importing_much
with importing_much():
    import torchmetrics as t
import scipy.signal
print(t.had, t.butter is scipy.signal.butter, hasattr(t.signal, "hamming"), t.signal.windows.hann(1))
"""


def test_who_asks_for_what_is_left_out_gets_it(tmp_path: Path) -> None:
    """A package that torchmetrics imports, and that imports scipy.signal in its turn."""
    (tmp_path / "torchmetrics.py").write_text(ASKS)
    done = python("-c", LOOKS_AGAIN, cwd=tmp_path)
    assert done.stdout == "None True False [1.]\n", done.stderr


BROKEN = """
import sys
if hasattr(sys, "tried"):
    raise ImportError("a second time")
sys.tried = True
raise ImportError("no libfoo")
"""


def test_why_torch_cannot_be_imported_is_said(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(BROKEN)
    done = python("-c", "from lockstep.imports import importing_much\nwith importing_much(): import torch", cwd=tmp_path)
    assert done.stderr.endswith("\nImportError: no libfoo\n")
