"""How far a run is: a bar on a terminal, a line an epoch, and progress.json."""
