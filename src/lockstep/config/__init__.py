"""Config of a run: overrides of the command line, types of keys, and the plan that follows."""
