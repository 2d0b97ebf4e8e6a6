"""The page of a plan: the choice, what it was chosen from, and the critical batches. Imports nothing heavy until there is one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.atomic_files import read_json

PLAN = "plan.json"  # in the sweep's directory


def plan_page(sweep_dir: Path) -> dict[str, Any] | None:
    """Returns the page, or None if the sweep is no plan or has not come to its end."""
    plan = read_json(sweep_dir / PLAN)
    if plan is None:
        return None
    return {"title": f"Plan in {sweep_dir.name}", "answer": plan["answer"], "blocks": [*_blocks(plan)]}


def _blocks(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if plan["overrides"]:
        yield {"text": f"Follow it: `{' '.join(plan['overrides'])}`"}
    if plan["candidates"]:
        yield from _choices(plan)
    yield {"heading": "The critical batch"}
    yield {"picture": "critical", "alt": "Critical batches and noise scales by checkpoint", "draw": lambda: draw_critical(plan)}
    columns = ["from samples", "to samples", "twice the samples at batch", "noise scale there", "best rates by batch"]
    yield {"columns": columns, "table": [_critical_row(row, plan["noise_scale"]) for row in plan["critical_batches"]]}
    yield {
        "text": "Branches see the same samples in the same order. Best rates are of those that were tried, for the batches "
        "that were tried."
    }


def _choices(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"heading": "What it was chosen from"}
    yield {"picture": "front", "alt": "Speed-up over cost, with the Pareto front", "draw": lambda: draw_front(plan)}
    columns = ["devices", "global batch", "speed-up", "device-hours", "seconds", "limited by", "least certain", "throughput"]
    rows = [one for one in plan["candidates"] if one["is_on_front"] or _is_chosen(one, plan)]
    yield {"columns": columns, "table": [_row(one) for one in rows]}
    yield {
        "text": "These are the Pareto front and the choice. Speed-ups are of the time to the same loss, over a device with batch "
        f"{plan['batch']}: throughput times what the samples are worth. Seconds are of a training "
        "that is worth as much as the configured one, without validation. Throughput was timed on "
        f"{plan['timed_devices']} devices; for others it is predicted by the fitted model of a step, which knows this "
        "machine's links only."
    }


def _is_chosen(one: dict[str, Any], plan: dict[str, Any]) -> bool:
    chosen = plan["chosen"] or {}
    return all(one[name] == chosen.get(name) for name in ("devices", "global_batch"))


def _row(one: dict[str, Any]) -> list[str]:
    speedup, cost = (f"{mean:.2f}x [{low:.2f} to {high:.2f}]" for mean, low, high in (one["speedup"], one["cost"]))
    seconds, low, high = one["seconds_of_a_training"]
    return [
        str(one["devices"]),
        str(one["global_batch"]),
        speedup,
        cost,
        f"{seconds:.4g} [{low:.4g} to {high:.4g}]",
        one["limit"],
        max(one["errors"], key=lambda cause: one["errors"][cause]),
        "timed" if one["is_measured"] else "predicted",
    ]


def _critical_row(row: dict[str, Any], noise_scales: dict[str, float | None]) -> list[str]:
    noise = noise_scales.get(str(row["samples"]))
    rates = ", ".join(f"{batch}: {rate:.2g}" for batch, rate in row["best_rate"].items() if rate is not None)
    return [str(row["from"]), str(row["samples"] or ""), _critical(row), "" if noise is None else f"{noise:.0f}", rates]


def _critical(row: dict[str, Any]) -> str:
    if row["critical_above"] is not None:
        return f"above {row['critical_above']}, the largest that was tried"
    if row["critical_batch"] is None:
        return "can't be said"
    low, high = row["critical_interval"]
    return f"{row['critical_batch']:.0f} [{low:.0f} to {'more than was tried' if high is None else f'{high:.0f}'}]"


def draw_front(plan: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    for one in plan["candidates"]:
        (mean, low, high), cost = one["speedup"], one["cost"][0]
        style = {"marker": "o" if one["is_measured"] else "s", "alpha": 1.0 if one["is_sure"] else 0.3}
        axes.errorbar(
            mean, cost, xerr=[[mean - low], [high - mean]], color="#0072b2" if one["is_on_front"] else "#6b6b6b", **style
        )
        if one["is_on_front"] or _is_chosen(one, plan):
            axes.annotate(f"{one['devices']} x {one['global_batch']}", (mean, cost), textcoords="offset points", xytext=(4, 4))
    for one in (one for one in plan["candidates"] if _is_chosen(one, plan)):
        axes.plot(one["speedup"][0], one["cost"][0], "*", color="#d55e00", markersize=16, label="chosen")
        axes.legend()
    axes.set(xscale="log", xlabel="speed-up to the same loss (squares: predicted; pale: not sure)", ylabel="device-hours")
    return figure


def draw_critical(plan: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    rows = plan["critical_batches"]
    measured = [(row["samples"], row["critical_batch"]) for row in rows if row["critical_batch"]]
    noise = [(int(samples), value) for samples, value in plan["noise_scale"].items() if value]
    above = [(row["samples"], row["critical_above"]) for row in rows if row["critical_above"]]
    marks = (
        (measured, "o", "critical batch by branches"),
        (above, "^", "critical batch above this"),
        (noise, "x", "noise scale"),
    )
    for points, mark, label in marks:
        axes.plot([at for at, _ in points], [value for _, value in points], mark, label=label)
    axes.set(yscale="log", xlabel="samples that the smallest batch was trained on", ylabel="samples")
    axes.legend()
    return figure
