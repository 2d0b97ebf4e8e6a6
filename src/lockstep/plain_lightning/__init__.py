"""Give any LightningModule and data, on N processes, the batches, gradients and metrics of one process.

guard.py                adds the callbacks below to a trainer, if a module or its data need them
loaders.py              divides the batches of torch's loaders among processes; streams.py does so for streams
shared_loading.py       the callback that does so, and that resumes a run at its position in the epoch
same_samples.py         compares the data between processes, and with the checkpoint's
callback.py             acts on steps, on any module; weights.py: the weight of a short batch in the backward pass
processes.py            collectives: comparisons, and decisions of one process that all follow
reduced_logs.py         reduces logged values over processes; list_states.py does so for metrics' list states
monitored.py            checks that a module logs the metrics that the config monitors
plain_values.py         removes objects that can't be loaded from checkpoints; unsaved_state.py names state that they lack
lightning_internals.py  the private names of Lightning that this package needs
sweep_rate.py           lets the sweeps of conf/sweep change a module's learning rate
"""
