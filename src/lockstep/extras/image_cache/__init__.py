"""Image folders decoded once."""
