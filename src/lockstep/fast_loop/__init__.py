"""Lightning's loop over the batches of an epoch, with a short way for plain steps.

epoch_loop.py  the loop, and the callback that gives it to the trainer
plain.py       which steps are plain
"""
