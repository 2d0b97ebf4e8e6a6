"""The confusion matrix of the test set, as a picture in TensorBoard."""
