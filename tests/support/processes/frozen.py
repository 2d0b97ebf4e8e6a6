"""Imported last by the process that tests are forked from: no collection of garbage goes through what it has imported."""

import atexit
import gc

gc.collect()
gc.freeze()
atexit.register(gc.unfreeze)  # or libraries count what is left at the interpreter's end
