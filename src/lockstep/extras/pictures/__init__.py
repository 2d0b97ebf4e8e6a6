"""Pictures in TensorBoard: validation images with predictions, and the confusion matrix of the test set."""
