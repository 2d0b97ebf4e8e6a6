"""Pictures as data: folders of image files, torchvision's labelled sets, and predictions of image files.

decoding.py            an image file as a tensor
image_folder.py        one folder per class
torchvision_images.py  MNIST, FashionMNIST, KMNIST and CIFAR-10
"""

FORMER_NAMES = {
    "lockstep.datamodules.image_folder.ImageFolder": "lockstep.extras.images.image_folder.ImageFolder",
    "lockstep.datamodules.torchvision_images.TorchvisionImages": ("lockstep.extras.images.torchvision_images.TorchvisionImages"),
}
