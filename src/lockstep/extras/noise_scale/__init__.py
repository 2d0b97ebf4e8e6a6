"""The gradient noise scale: up to which batch a larger one pays (McCandlish et al. 2018, arXiv:1812.06162)."""

FILES = ["conf/callbacks/noise_scale.yaml", "docs/noise_scale_mnist.png"]
NEEDS = ["monitors"]
