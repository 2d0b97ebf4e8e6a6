"""The tensors of a batch of any shape, and how many samples it has: for what has to do with Lightning code as it is."""
