"""A bar on a terminal, a line an epoch, and progress.json."""
