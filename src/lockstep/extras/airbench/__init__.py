"""The CIFAR-10 speedrun (Jordan 2024, arXiv:2404.00498)."""
