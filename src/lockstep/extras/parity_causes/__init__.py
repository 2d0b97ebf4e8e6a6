"""Why two trainings that scripts/parity.py compares differ: causes, each confirmed by switching it off.

    causes.py     what may make two sides differ: a symptom of each, what switches it off, and what to do about it
    diagnosis.py  which of them are suspected, confirmed and named
    switches.py   what switches them off in a training, beyond its config; draws.py: in its random numbers

conf/parity.yaml names what scripts/parity.py asks, in `parity.explain`.
"""
