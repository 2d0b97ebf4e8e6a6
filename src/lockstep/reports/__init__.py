"""What a sweep says: how many devices, which learning rate, and why."""
