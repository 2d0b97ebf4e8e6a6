"""Data sets of the Hugging Face hub."""

FILES = ["conf/datamodule/hf_dataset.yaml"]
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES = ["hf"]
