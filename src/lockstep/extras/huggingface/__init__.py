"""Data sets of the Hugging Face hub."""

FILES = ["conf/datamodule/hf_dataset.yaml"]
NEEDS = ["images"]
OPTIONAL_DEPENDENCIES = ["hf"]
