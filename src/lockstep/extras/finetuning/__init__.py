"""Training some of the weights: frozen layers, and low-rank adapters."""
