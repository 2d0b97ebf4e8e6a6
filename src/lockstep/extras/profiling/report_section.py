"""Where the time of a step goes, in a sweep's report."""

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any


def step_time(analysis: Any) -> Iterator[dict[str, Any]]:
    """`analysis.records` are the jobs' records by number of devices."""
    shares: dict[int, dict[str, float]] = {}
    for devices, records in analysis.records.items():
        if jobs := [parts for record in records if (parts := record.get("step_time"))]:
            shares[devices] = {name: fmean(parts[name] for parts in jobs) for name in jobs[0]}
    if not shares:
        return
    alt = "The share of each part of a step, by number of devices"
    yield {"heading": "Where a step's time goes"}
    yield {"picture": "time", "alt": alt, "draw": lambda: draw_shares(shares)}
    rows = [[str(n), *(f"{share:.0%}" for share in parts.values())] for n, parts in shares.items()]
    yield {"columns": ["devices", *next(iter(shares.values()))], "table": rows}


def draw_shares(shares: Mapping[int, Mapping[str, float]]) -> Any:
    """Returns matplotlib's Figure: a bar for each number of devices."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 1.2 + 0.45 * len(shares)))
    axis, rows, left = figure.subplots(), range(len(shares)), [0.0] * len(shares)
    for name in next(iter(shares.values())):
        widths = [100 * parts[name] for parts in shares.values()]
        axis.barh(rows, widths, left=left, label=name, edgecolor="white")
        left = [sum(pair) for pair in zip(left, widths, strict=True)]
    axis.set_yticks(rows, list(map(str, shares)))
    axis.invert_yaxis()
    axis.set(xlabel="% of a step", ylabel="devices", xlim=(0, 100))
    figure.legend(loc="outside right center")
    return figure
