"""MLflow and Weights & Biases, as loggers beside TensorBoard."""

FILES = ["conf/logger/mlflow.yaml", "conf/logger/wandb.yaml"]
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES = ["mlflow", "wandb"]
