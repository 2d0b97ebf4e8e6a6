"""The very same bits on any number of processes that divides V: `trainer.exact=V`.

events.py    what `trainer.exact` means for a run's config
strategy.py  a step of V virtual workers, of which each process is some in turn; their gradients are summed in one tree
tree.py      that tree, within a process and between processes
means.py     the epoch's means, summed worker by worker
"""

FILES = [
    "docs/exact.md",
    "conf/events/exact.yaml",
    "benchmarks/exact.py",
    "benchmarks/exact.md",
    "benchmarks/exact_models.py",
    "benchmarks/exact_models.md",
    "benchmarks/exact_same.py",
    "benchmarks/exact_state.py",
    "benchmarks/exact_process.py",
]
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
