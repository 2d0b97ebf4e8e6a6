"""What loggers show of a finished run, and MLflow and Weights & Biases as loggers beside TensorBoard."""

FILES = ["conf/events/tracking.yaml", "conf/logger/mlflow.yaml", "conf/logger/wandb.yaml"]
OPTIONAL_DEPENDENCIES = ["mlflow", "wandb"]
