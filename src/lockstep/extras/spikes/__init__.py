"""A guard that leaves out steps whose loss is far above those before it."""
