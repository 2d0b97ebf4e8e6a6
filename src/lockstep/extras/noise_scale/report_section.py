"""Section of a sweep's report: what the gradient noise scale says of the number of devices."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any


def noise_scale(records_of: Mapping[int, Sequence[Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    """It follows McCandlish et al. 2018, arXiv 1812.06162. `records_of` are the jobs' records by number of devices."""
    scales: dict[int, float] = {}
    for devices, records in records_of.items():
        values = [value for record in records if (value := record.get("noise_scale_mean") or record.get("noise_scale"))]
        scales |= {devices: fmean(values)} if values else {}
    if not scales:
        return
    yield {"heading": "How large a batch pays: the gradient noise scale"}
    yield {"columns": ["devices", "noise scale, samples"], "table": [[str(n), f"{scale:,.0f}"] for n, scale in scales.items()]}
    fewest, records = next(iter(records_of.items()))
    batch = records[0]["global_batch_size"] / fewest
    devices = max(1, round(max(scales.values()) / batch))
    yield {
        "text": "A batch of the noise scale needs twice the fewest possible steps, and twice the fewest possible samples. At "
        f"{batch:.0f} samples per device that is {devices} device{'' if devices == 1 else 's'}: beyond it another one saves few "
        "steps, however fast the network is."
    }
