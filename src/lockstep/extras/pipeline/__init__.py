"""Pipelines: a net's layers in stages, each on a process of its own, by GPipe or 1F1B."""

FILES = ["docs/pipeline.md", "conf/trainer/pipeline.yaml", "conf/trainer/strategy/pipeline.yaml"]
NEEDS = ["any_batch", "sharding"]
