"""What commands of the tests are forked from has imported everything, and computes with one thread a process."""

from importlib.util import find_spec
from pathlib import Path

from commands import python
from forked import PRELOADED

LOOKS = """
import gc, sys, torch
print([name for name in {names} if name not in sys.modules], gc.get_freeze_count() > 0, torch.get_num_threads())
"""


def test_all_is_imported_and_frozen_and_has_one_thread(tmp_path: Path) -> None:
    names = [name for name in PRELOADED if find_spec(name) is not None]  # with an extra some of it is removed
    (tmp_path / "looks.py").write_text(LOOKS.format(names=names))
    assert python(tmp_path / "looks.py", cwd=tmp_path).stdout == "[] True 1\n"
