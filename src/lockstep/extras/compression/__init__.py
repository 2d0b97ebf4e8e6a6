"""Gradients sent in fewer bits: half precision, PowerSGD."""
