"""A LightningModule and data that know nothing of this package: on N processes the batches, gradients and metrics of one.

guard.py                is composed for every run, and gives a trainer the callbacks where a module or its data need them
monitored.py            checks that a module logs what its run is compared by
callback.py             acts from outside, on any module: on steps by weights.py, on loaders by shared_loading.py
loaders.py              torch's loaders shared out over processes; streams.py: streams, which say how they are divided
reduced_logs.py         reduces what modules log over processes, by logs.py
list_states.py          gathers metrics' states that are lists
same_samples.py         compares data between processes, and with that of the checkpoint
kept_state.py           saves state that Lightning leaves out; rates_by_world.py: names rates that depend on the processes
reloads.py              makes loaders again in the epochs of a run that was not interrupted
lightning_internals.py  the private names of Lightning that this needs
sweep_rate.py           lets the sweeps of conf/sweep change the rate of a module, or refuses them
processes.py            comparisons and exchanges between processes; agreements.py: decisions of one that all take
"""
