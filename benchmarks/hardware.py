"""What the figures were made on."""

import platform
import re
import subprocess
from pathlib import Path


def processor() -> str:
    """The processor's name, by /proc/cpuinfo, without its trademarks."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    return re.sub(r"\((R|TM)\)| (CPU|Processor)$", "", name)


def gpu() -> str | None:
    """The first GPU's name, by its driver; None where there is none."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        names = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return None
    return names[0].strip() if names else None
