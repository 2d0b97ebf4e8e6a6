"""Where the bits of two trainings with trainer.exact part: the first operation that gives another result from the same inputs.

    tracer.py  hashes of what every module computes
    places.py  where those of two trainings part

conf/parity.yaml names what scripts/parity.py asks, in `parity.place`.
"""
