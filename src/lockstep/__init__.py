"""Lockstep: a Hydra + PyTorch Lightning research template in which N GPUs give the result of one."""
