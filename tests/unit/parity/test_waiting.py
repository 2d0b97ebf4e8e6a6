"""Where a process waits, told by its stack."""

from lockstep.parity.waiting import innermost

STACKS = """Thread 0x01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/src/lockstep/parity/processes.py", line 211 in _die_with_parent

Current thread 0x02 (most recent call first):
  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 3 in all_reduce
  File "/home/me/model.py", line 34 in training_step
  File "/src/lockstep/parity/interventions.py", line 60 in training_step
  File "/venv/site-packages/lightning/pytorch/loops/fit_loop.py", line 9 in run
  File "/src/lockstep/parity/observe.py", line 50 in train
  File "<string>", line 1 in <module>
"""


def test_the_innermost_frame_that_is_no_library_s_is_named() -> None:
    assert innermost(STACKS) == "waits in /home/me/model.py:34, in training_step"


def test_without_one_the_innermost_of_all_is() -> None:
    library = "\n".join(line for line in STACKS.splitlines() if "model.py" not in line)
    assert innermost(library) == "waits in /venv/site-packages/torch/distributed/distributed_c10d.py:3, in all_reduce"


def test_a_process_that_does_not_train_is_said_to_be_so() -> None:
    assert innermost('Thread 0x01 (most recent call first):\n  File "/a.py", line 1 in a\n') == "not in its training"
