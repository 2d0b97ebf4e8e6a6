"""What the model of a step predicts for numbers of devices that were not measured, and what would change it."""

from dataclasses import dataclass, replace

from lockstep.extras.report.step_model import StepModel, ring

COUNTS = (8, 16, 64, 1024)
NEGLIGIBLE = 0.05  # of a step: less communication is no limit


@dataclass(frozen=True)
class Network:
    """Joins nodes of so many devices. `transfer` is in seconds, as in StepModel: bytes over the node's bandwidth."""

    devices_per_node: int
    transfer: float
    latency: float


@dataclass(frozen=True)
class Workload:
    """How the batch goes with the number of devices: `batch` samples per device, or `global_batch` over all.

    accumulate: batches to a step, of which only the last is followed by an all-reduce.
    """

    batch: float = 0.0
    global_batch: float = 0.0
    accumulate: int = 1
    network: Network | None = None

    def per_device(self, devices: int) -> float:
        return self.global_batch / devices if self.global_batch else self.batch

    def terms(self, step: StepModel, devices: int) -> dict[str, float]:
        """Returns the seconds of a step by their cause. There is a ring within a node and one between the nodes; the overlap
        shortens both in proportion."""
        inner = min(devices, self.network.devices_per_node) if self.network else devices
        bandwidth, latency = ring(inner, step.transfer, step.latency)
        rings = {"bandwidth": bandwidth, "latency": latency}
        if self.network and devices > inner:
            bandwidth, latency = ring(devices / inner, self.network.transfer, self.network.latency)
            rings |= {"bandwidth between nodes": bandwidth, "latency between nodes": latency}
        total = sum(rings.values())
        exposed = max(0.0, total - step.overlap) / total if total else 0.0
        samples = self.accumulate * self.per_device(devices)
        compute = {"fixed cost": self.accumulate * step.fixed, "compute": samples * step.per_sample}
        return compute | {name: seconds * exposed for name, seconds in rings.items()}

    def seconds(self, step: StepModel, devices: int) -> float:
        return sum(self.terms(step, devices).values())

    def efficiency(self, step: StepModel, devices: int) -> float:
        """Returns the throughput of a device as a share of what one alone has."""
        return self.throughput(step, devices) / (devices * self.throughput(step, 1))

    def throughput(self, step: StepModel, devices: int) -> float:
        """Returns samples per second over all devices."""
        return self.per_device(devices) * devices * self.accumulate / self.seconds(step, devices)

    def limit(self, step: StepModel, devices: int) -> str:
        """Names the largest term that ideal scaling does not have, or compute if all of them together are small."""
        terms = self.terms(step, devices)
        ideal = {"compute"} if self.global_batch else {"compute", "fixed cost"}
        losses = {name: seconds for name, seconds in terms.items() if name not in ideal}
        is_limited = sum(losses.values()) > NEGLIGIBLE * sum(terms.values())
        return max(losses, key=lambda name: losses[name]) if is_limited else "compute"


def what_if(workload: Workload, step: StepModel, devices: int) -> dict[str, float]:
    """Returns the efficiency that each of four changes would give."""
    network = workload.network
    larger = replace(workload, batch=2 * workload.batch, global_batch=2 * workload.global_batch)
    smaller = replace(workload, network=network and replace(network, transfer=network.transfer / 2))
    fewer = replace(workload, network=network and replace(network, latency=network.latency / 2))
    return {
        "twice the batch": larger.efficiency(step, devices),
        "accumulation over 4 batches": replace(workload, accumulate=4).efficiency(step, devices),
        "gradients in half as many bytes (16-bit)": smaller.efficiency(replace(step, transfer=step.transfer / 2), devices),
        "buckets twice as large (half the messages)": fewer.efficiency(replace(step, latency=step.latency / 2), devices),
    }
