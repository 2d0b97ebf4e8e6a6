"""Gradients sent in fewer bits, or less often: half precision, PowerSGD, local SGD."""
