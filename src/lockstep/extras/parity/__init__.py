"""Do N processes give what one process gives, for this model and this data, and if not, why?

    trainings.py   the configs of the two trainings, and one of them by train.py in processes of its own
    recorder.py    a callback that writes down what each step did; sketches.py: what it keeps of tensors and batches
    comparison.py  where two records part first
    switches.py    callbacks that switch off what may make them part
    verdict.py     from a config to the answer; the list of causes

`scripts/parity.py` is the command.
"""
