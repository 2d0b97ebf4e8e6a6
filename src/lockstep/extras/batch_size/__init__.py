"""datamodule.batch_size=auto: the largest batch that fits in memory."""

FILES = ["conf/events/batch_size.yaml"]
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
