"""ResNets (He et al. 2016, arXiv:1512.03385)."""

FORMER_NAMES = {
    "lockstep.nets.resnet": "lockstep.extras.resnet.resnet.resnet",
    "lockstep.nets.resnet.resnet": "lockstep.extras.resnet.resnet.resnet",
}
