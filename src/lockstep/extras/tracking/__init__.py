"""What loggers show of a finished run, and MLflow and Weights & Biases as loggers beside TensorBoard."""
