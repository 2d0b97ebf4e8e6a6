"""What the figures were made on."""

import platform
from pathlib import Path


def processor() -> str:
    """The processor's name, by /proc/cpuinfo."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
