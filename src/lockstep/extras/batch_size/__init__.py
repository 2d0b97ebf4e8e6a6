"""The largest batch that fits in memory, for lockstep batch_size."""
