"""Training some of the weights: frozen layers, and low-rank adapters."""

FILES = ["docs/fine-tuning.md", "conf/callbacks/freeze.yaml", "conf/model/adapt", "conf/experiment/finetune_digits.yaml"]
NEEDS = ["saved_runs"]
