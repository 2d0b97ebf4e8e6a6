"""Pictures as data: folders of image files, torchvision's labelled sets, and predictions of image files.

decoding.py            an image file as a tensor
image_folder.py        one folder per class
torchvision_images.py  MNIST, FashionMNIST, KMNIST and CIFAR-10
"""
