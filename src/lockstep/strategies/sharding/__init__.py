"""Models larger than one device: sharded weights and divided layers."""
