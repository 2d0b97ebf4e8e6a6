"""Image folders decoded once, and data that lives on the device."""

FILES = ["scripts/pack.py"]
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
