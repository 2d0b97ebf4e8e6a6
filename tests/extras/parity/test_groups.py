"""Where a process waits, told by its stack."""

from pathlib import Path
from traceback import FrameSummary

from lockstep.extras.parity import groups
from lockstep.extras.parity.groups import innermost

OUTERMOST = FrameSummary("<string>", 1, "<module>")
PACKAGE = Path(groups.__file__).parent
TRAINING = FrameSummary(str(PACKAGE / "observe.py"), 50, "train")
FIT = FrameSummary("/venv/site-packages/lightning/pytorch/loops/fit_loop.py", 9, "run")
WRAPPED = FrameSummary(str(PACKAGE / "interventions.py"), 60, "training_step")
MODEL = FrameSummary("/home/me/model.py", 34, "training_step")
REDUCING = FrameSummary("/venv/site-packages/torch/distributed/distributed_c10d.py", 3, "all_reduce")


def test_the_innermost_frame_that_is_no_library_s_is_named() -> None:
    stack = [OUTERMOST, TRAINING, FIT, WRAPPED, MODEL, REDUCING]
    assert innermost(stack) == "waits in /home/me/model.py:34, in training_step"


def test_without_one_the_innermost_of_all_is() -> None:
    place = "/venv/site-packages/torch/distributed/distributed_c10d.py:3, in all_reduce"
    assert innermost([OUTERMOST, TRAINING, FIT, WRAPPED, REDUCING]) == f"waits in {place}"


def test_a_process_that_does_not_train_is_said_to_be_so() -> None:
    assert innermost([FrameSummary("/a.py", 1, "a")]) == "not in its training"
