"""What a run is asked to be: the command line's overrides, what each key accepts, and the plan it amounts to."""
