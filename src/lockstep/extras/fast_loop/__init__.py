"""Lightning's loop over the batches of an epoch, with a short way for plain steps.

events.py      gives it to the trainer
epoch_loop.py  the loop
plain.py       which steps are plain
counts.py      metrics of training, counted for several batches at once
"""
