"""Tensors of which each process holds a shard, for what trains with them: sharding and parity."""
