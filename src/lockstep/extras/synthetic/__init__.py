"""Data made up from the seed: images of classes, and vectors with targets that are noise or a linear map's."""
