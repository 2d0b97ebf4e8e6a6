"""datamodule.batch_size=auto: the largest batch that fits in memory."""

FILES: list[str] = []
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
