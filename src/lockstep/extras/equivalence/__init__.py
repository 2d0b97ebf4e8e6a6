"""Causes that keep several processes from giving the result of one, logged at the start of a run and kept in its record."""
