"""The CIFAR-10 speedrun (Jordan 2024, arXiv:2404.00498)."""

FILES = ["conf/model/airbench.yaml", "conf/experiment/cifar10_speedrun.yaml"]
NEEDS = ["image_cache", "images", "muon"]  # by an experiment
