"""The tensors of a batch of any shape, and its number of samples: for code that takes any LightningModule as it is."""
