"""Files that whoever comes first writes, and others wait for: decoded images, the tokens of texts."""

FILES: list[str] = []
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
