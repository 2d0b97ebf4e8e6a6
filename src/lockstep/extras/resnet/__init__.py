"""ResNets (He et al. 2016, arXiv:1512.03385)."""
