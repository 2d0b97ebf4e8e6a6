"""Verdict whether N processes give the result of one, for this model and this data, and why not.

    trainings.py   the configs of the two trainings, and one of them by train.py in processes of its own
    recorder.py    a callback that records each step; sketches.py: what it stores of tensors and batches
    comparison.py  the first difference of two records
    switches.py    callbacks that switch off possible causes
    verdict.py     from a config to the answer; the list of causes

`lockstep parity` is the command.
"""
