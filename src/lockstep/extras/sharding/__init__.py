"""Models larger than one device: fully sharded data parallelism and tensor parallelism."""

FILES = [
    "docs/larger-models.md",
    "conf/trainer/fsdp.yaml",
    "conf/trainer/tensor_parallel.yaml",
    "conf/trainer/strategy/fsdp.yaml",
    "conf/trainer/strategy/tensor_parallel.yaml",
    "conf/trainer/plan",
]
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
