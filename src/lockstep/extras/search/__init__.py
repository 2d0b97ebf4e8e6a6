"""A search over a space of values, by Optuna, with hopeless runs ended early."""
