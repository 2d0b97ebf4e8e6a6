"""What a search leaves in the sweep's directory and in the records of its trials, by name; imports nothing heavy."""

SEARCH = "search.json"  # in the sweep's directory: which study it is
PRUNED = "pruned_after"  # in the record of a trial that was ended early: the number of its validations
