"""The learning-rate range test (Smith 2017, arXiv:1506.01186)."""

FILES = ["conf/lr_range.yaml", "scripts/lr_range.py"]
