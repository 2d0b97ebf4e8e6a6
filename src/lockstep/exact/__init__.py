"""The very same bits on any number of processes that divides V: `trainer.exact=V`.

settings.py  what `trainer.exact` sets in a run's config
strategy.py  a step of V virtual workers, shared out over processes; their gradients are summed in one tree
tree.py      that tree, within a process and between processes
step.py      gradients and state that the workers leave of a step, summed and averaged
metrics.py   the states of torchmetrics, worker by worker
plain.py     LightningModules and data that know nothing of this package; loaders.py: their loaders
lightning_internals.py  the private names of Lightning that this needs
"""
