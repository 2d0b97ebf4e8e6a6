"""A search: Optuna says which points to try, and a sweep's launcher tries them. The names here import nothing heavy."""

STUDY = "study.log"  # in the sweep's directory: the study
PRUNED = "pruned_after"  # in the record of a trial that was ended early: the number of its validations
