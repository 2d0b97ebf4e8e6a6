"""A LightningModule and data that know nothing of this package: on N processes the batches, gradients and metrics of one.

guard.py                is composed for every run, and gives a trainer the callbacks where a module or its data need them
monitored.py            checks that a module logs what its run is compared by
callback.py             acts from outside as a Task and a DataModule do by themselves
loaders.py              torch's loaders shared out over processes; streams.py: streams, which say how they are divided
logs.py                 combines the values that ranks have logged
lightning_internals.py  the private names of Lightning that this needs
sweep_rate.py           lets the sweeps of conf/sweep change the rate of a module, or refuses them
processes.py            comparisons and exchanges between processes
"""
