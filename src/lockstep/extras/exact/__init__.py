"""The very same bits on any number of processes that divides V: `trainer.exact=V`.

settings.py  what `trainer.exact` sets in a run's config
strategy.py  a step of V virtual workers, of which each process is some in turn; their gradients are summed in one tree
tree.py      that tree, within a process and between processes
step.py      what the workers leave of a step, and what is made of its sum
metrics.py   the states of torchmetrics, worker by worker
objections.py  what can't be divided among workers
generators.py, compilation.py  what would give other bits in another process
plain.py     LightningModules and data that know nothing of this package; loaders.py: theirs
lightning_internals.py  the private names of Lightning that this needs
"""
