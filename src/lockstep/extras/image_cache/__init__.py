"""Image folders decoded once, and data that lives on the device."""

FILES = [
    "benchmarks/competitors/our_loader.py",
    "conf/datamodule/cached_image_folder.yaml",
    "conf/datamodule/loading",
    "scripts/pack.py",
]
NEEDS = ["file_cache", "images"]
