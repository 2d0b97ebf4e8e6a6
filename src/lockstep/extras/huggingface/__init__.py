"""Data sets of the Hugging Face hub."""

FILES = ["conf/datamodule/hf_dataset.yaml"]
NEEDS: list[str] = ["images"]
OPTIONAL_DEPENDENCIES = ["hf"]
