"""The learning-rate range test (Smith 2017, arXiv:1506.01186)."""
