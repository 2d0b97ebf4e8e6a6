"""Pictures as data: folders of image files, and torchvision's labelled sets."""
