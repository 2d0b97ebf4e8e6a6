"""The gradient noise scale: up to which batch a larger one pays (McCandlish et al. 2018, arXiv:1812.06162)."""
