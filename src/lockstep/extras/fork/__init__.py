"""A new run that goes on from a checkpoint of another one: `fork=RUN_DIR`.

events.py    what `fork` means for the command line, the record and the training of a run
command.py   the command line spelled out, and the checkpoint that is meant
callback.py  what of the config is there where restoring a checkpoint would bring what it was trained with
"""
