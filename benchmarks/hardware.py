"""Name of the hardware on which figures were made."""

import platform
import re
from pathlib import Path


def processor() -> str:
    """The processor's name, by /proc/cpuinfo, without its trademarks."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    return re.sub(r"\((R|TM)\)| (CPU|Processor)$", "", name)
