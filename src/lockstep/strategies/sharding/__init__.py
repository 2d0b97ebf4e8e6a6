"""Models larger than one device: sharded weights, divided layers, and activations that are computed again."""
