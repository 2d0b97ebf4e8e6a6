"""A search over a space of values, by Optuna, with hopeless runs ended early."""

FILES = [
    "conf/hydra/sweeper/optuna.yaml",
    "conf/sweep/optuna.yaml",
    "conf/callbacks/pruning.yaml",
    "src/hydra_plugins/lockstep_search.py",
]
OPTIONAL_DEPENDENCIES = ["search"]
