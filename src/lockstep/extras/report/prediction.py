"""What the model of a step says of numbers of devices that were not measured, and what would move it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lockstep.extras.report.communication import StepTime, ring

COUNTS = (8, 16, 64, 1024)
FREE = 0.05  # of a step: communication below that is no limit


@dataclass(frozen=True)
class Network:
    """What joins nodes of so many devices; `transfer` in seconds, as in StepTime: bytes over the node's bandwidth."""

    devices_per_node: int
    transfer: float
    latency: float


@dataclass(frozen=True)
class Setting:
    """A number of devices and how the batch goes with it: `batch` samples per device, or `global_batch` over all.

    accumulate: batches to a step, of which only the last is followed by an all-reduce.
    """

    batch: float = 0.0
    global_batch: float = 0.0
    accumulate: int = 1
    network: Network | None = None

    def per_device(self, devices: int) -> float:
        return self.global_batch / devices if self.global_batch else self.batch

    def terms(self, step: StepTime, devices: int) -> dict[str, float]:
        """Seconds of a step. Within a node and between the nodes a ring each; what overlap hides comes off both alike."""
        inner = min(devices, self.network.devices_per_node) if self.network else devices
        bandwidth, latency = ring(inner, step.transfer, step.latency)
        rings = {"bandwidth": bandwidth, "latency": latency}
        if self.network and devices > inner:
            bandwidth, latency = ring(devices / inner, self.network.transfer, self.network.latency)
            rings |= {"bandwidth between nodes": bandwidth, "latency between nodes": latency}
        total = sum(rings.values())
        shown = max(0.0, total - step.overlap) / total if total else 0.0
        samples = self.accumulate * self.per_device(devices)
        compute = {"fixed cost": self.accumulate * step.fixed, "compute": samples * step.per_sample}
        return compute | {name: seconds * shown for name, seconds in rings.items()}

    def seconds(self, step: StepTime, devices: int) -> float:
        return sum(self.terms(step, devices).values())

    def efficiency(self, step: StepTime, devices: int) -> float:
        """Samples a second of a device, as a part of what one alone does."""
        return self.rate(step, devices) / (devices * self.rate(step, 1))

    def rate(self, step: StepTime, devices: int) -> float:
        """Samples a second, of all devices."""
        return self.per_device(devices) * devices * self.accumulate / self.seconds(step, devices)

    def limit(self, step: StepTime, devices: int) -> str:
        """The largest term that would not be there in ideal scaling; compute where all of them together are small."""
        terms = self.terms(step, devices)
        total = sum(terms.values())
        ideal = {"compute"} if self.global_batch else {"compute", "fixed cost"}
        losses = {name: seconds for name, seconds in terms.items() if name not in ideal}
        return max(losses, key=lambda name: losses[name]) if sum(losses.values()) > FREE * total else "compute"


def levers(setting: Setting, step: StepTime, devices: int) -> Mapping[str, float]:
    """By what could be changed the efficiency it would give."""
    larger = replace(setting, batch=2 * setting.batch, global_batch=2 * setting.global_batch)
    halved = replace(step, transfer=step.transfer / 2)
    network = setting.network and replace(setting.network, transfer=setting.network.transfer / 2)
    fewer = replace(step, latency=step.latency / 2)
    quicker = setting.network and replace(setting.network, latency=setting.network.latency / 2)
    return {
        "twice the batch": larger.efficiency(step, devices),
        "accumulation over 4 batches": replace(setting, accumulate=4).efficiency(step, devices),
        "gradients in half as many bytes (16-bit)": replace(setting, network=network).efficiency(halved, devices),
        "buckets twice as large (half the messages)": replace(setting, network=quicker).efficiency(fewer, devices),
    }
