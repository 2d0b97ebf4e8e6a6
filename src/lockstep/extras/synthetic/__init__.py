"""Data made up from the seed: images of classes, and vectors with targets that are noise or a linear map's.

synthetic_images.py   images of any shape, for benchmarks
random_regression.py  the toy data of the DDP guides
"""
