"""A LightningModule and data that know nothing of this package: on N processes the batches, gradients and metrics of one.

guard.py                gives a trainer the callbacks below, where a module or its data need them
loaders.py              divides the batches of torch's loaders among processes; streams.py: streams, which say their share
shared_loading.py       the callback that does so, and begins a resumed run at its place in the epoch
same_samples.py         compares the data between processes, and with that of the checkpoint
callback.py             acts on steps, on any module; weights.py: the weight of a short batch in the backward pass
processes.py            comparisons and exchanges between processes, and decisions of one that all take
reduced_logs.py         reduces what modules log over processes, by logs.py; list_states.py: metrics with states that are lists
monitored.py            checks that a module logs what its run is compared by
plain_values.py         leaves out of checkpoints what can't be read; unsaved_state.py: names what they lack
lightning_internals.py  the private names of Lightning that this needs
sweep_rate.py           lets the sweeps of conf/sweep change the rate of a module
"""
