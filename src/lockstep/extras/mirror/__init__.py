"""A copy of a run elsewhere, made while it trains, from which another machine continues."""

FILES = ["docs/storage.md", "conf/events/mirror.yaml", "scripts/fetch.py"]
OPTIONAL_DEPENDENCIES = ["s3"]
