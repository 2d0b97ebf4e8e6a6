"""Does N equal one, for this model and this data? Two trainings compared step by step, and why where they differ.

    sides.py      the two trainings: configs, and what has been done to them
    processes.py  the ranks of both, started once for all comparisons
    observe.py    inside the ranks: what each step did, and how far that is from the other side's
    exchange.py   what they tell each other
    interventions.py what is done to a training beyond its config
    compare.py    one comparison: the table, the tolerances, the verdict
    causes.py     what may make two sides differ, confirmed by switching it off

`scripts/parity.py` is the command. Nothing else knows this package.
"""
