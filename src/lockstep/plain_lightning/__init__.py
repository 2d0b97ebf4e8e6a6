"""Give any LightningModule and data, on N processes, the batches, gradients and metrics of one process.

loaders.py              divides the batches of torch's loaders among processes; streams.py does so for streams
shared_loading.py       the callback that does so, and that resumes a run at its position in the epoch; weights of short batches
callback.py             acts on steps, on any module; the guard that adds all this
processes.py            collectives: comparisons, list states of metrics, decisions of one process that all follow
reduced_logs.py         reduces logged values over processes
module_checks.py        checks a user's module and data: monitored metrics, equal samples, state that no checkpoint has
"""
