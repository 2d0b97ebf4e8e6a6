"""Tensors of which each process holds a shard, for what trains with them: sharding, Muon, parity."""

FILES: list[str] = []
NEEDS: list[str] = []
OPTIONAL_DEPENDENCIES: list[str] = []
