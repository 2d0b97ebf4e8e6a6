"""Gradients sent in 16 bits."""
