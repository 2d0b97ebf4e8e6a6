"""MLflow and Weights & Biases as loggers beside TensorBoard, and the results of a finished run in them."""
