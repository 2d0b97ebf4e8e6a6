"""Imported last by the process that tests are forked from: no collection of garbage goes through what it has imported."""

import gc

gc.collect()
gc.freeze()
