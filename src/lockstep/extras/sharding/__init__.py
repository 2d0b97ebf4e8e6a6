"""Models larger than one device: sharded weights, divided layers, and activations that are computed again."""

FILES = [
    "docs/larger-models.md",
    "conf/trainer/fsdp.yaml",
    "conf/trainer/tensor_parallel.yaml",
    "conf/trainer/strategy/fsdp.yaml",
    "conf/trainer/strategy/tensor_parallel.yaml",
    "conf/trainer/plan",
    "conf/callbacks/activation_checkpointing.yaml",
]
NEEDS = ["dtensors"]
