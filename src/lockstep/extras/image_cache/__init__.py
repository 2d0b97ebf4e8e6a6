"""Image folders decoded once, and data that lives on the device."""
