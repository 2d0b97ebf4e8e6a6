"""Image folders decoded once, and data that lives on the device."""

FILES: list[str] = []
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
