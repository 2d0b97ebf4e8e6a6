"""Does N equal one, for this model and this data? Two trainings compared step by step.

    sides.py           the two trainings: their configs, and what has been done to them
    processes.py       trains both at the same time, by processes that the core's launcher supervises; ranks.py: what these run
    trainings.py       inside the ranks: one training of one side, and how far its steps are from the other side's
    recorder.py        what each step did; records.py: the files in which one side reads what the other did
    differences.py     how far tensors lie apart, and which samples a step has had
    interventions.py   what is done to a training beyond its config
    larger_batches.py  one process takes the batches of several, where loaders alone know their size
    comparison.py      both are trained, and what came of it: the table; tolerances.py
    verdict.py         what is said to a person

`scripts/parity.py` is the command. What conf/parity.yaml names as `parity.explain` is asked why two sides differ.
"""
