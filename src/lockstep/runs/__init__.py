"""The life of a run: its directory, lock, status, record, and how it is resumed."""
