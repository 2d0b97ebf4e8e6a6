"""The largest batch that fits in memory, for scripts/batch_size.py."""
