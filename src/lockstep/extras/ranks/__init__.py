"""Where the processes of a run are, in status.json, and that all of them have one config."""
