"""How fast a language model trains, and how much of its devices that takes."""

import logging
import statistics
from typing import Any

import torch
from lightning import LightningModule, Trainer

from lockstep.errors import config_error
from lockstep.extras.language.language_model import LanguageModel
from lockstep.extras.rates.rates import Throughput

log = logging.getLogger(__name__)

# Operations per second of one device, in 16 bits and in float32, by NVIDIA's data sheets of H100, H200, A100, L40S, L40, L4, V100
# and T4: where a sheet gives a figure with sparsity, half of it. The first whose words are all in the device's name.
PEAKS = {
    "H100 PCIe": (756e12, 51e12),
    "H100 NVL": (835e12, 60e12),
    "H100": (989e12, 67e12),  # SXM
    "H200 NVL": (835e12, 60e12),
    "H200": (989e12, 67e12),  # SXM
    "A100": (312e12, 19.5e12),
    "L40S": (362e12, 91.6e12),
    "L40": (181e12, 90.5e12),
    "L4": (121e12, 30.3e12),
    "V100 PCIE": (112e12, 14e12),
    "V100": (125e12, 15.7e12),  # SXM2
    "T4": (65e12, 8.1e12),
}


class TokenThroughput(Throughput):
    """Throughput, and throughput/tokens_per_second over all processes. Where the net says its `flops_per_token` and the device's
    peak is known, by its name or as `peak_flops`, throughput/mfu too: model FLOPs utilisation (Chowdhery et al. 2022,
    arXiv:2204.02311, appendix B).

    `facts`: their medians, but for the first, which warms up; mfu is None where it is unknown.
    """

    def __init__(self, peak_flops: float | None = None) -> None:
        super().__init__()
        self.peak_flops = peak_flops
        self._tokens: list[float] = []  # per second
        self._share_of_a_token = float("nan")  # of the devices' peak, per token and second

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if not isinstance(pl_module, LanguageModel):
            raise config_error("callbacks", "tokens", f"counts those of language models, not of a {type(pl_module).__name__}")
        name = torch.cuda.get_device_name(pl_module.device) if pl_module.device.type == "cuda" else "a CPU"
        peak = self.peak_flops or find_peak(name, str(trainer.precision))
        flops: Any = getattr(pl_module.net, "flops_per_token", None)
        if peak and flops:
            self._share_of_a_token = flops / (peak * trainer.world_size)
        else:
            how = "set callbacks.throughput.peak_flops" if flops else "the net has no flops_per_token"
            log.info(f"Model FLOPs utilisation is unknown for {name} in {trainer.precision}: {how}")

    def rates(self, trainer: Trainer, model: LightningModule, samples_per_second: float) -> dict[str, float]:
        assert isinstance(model, LanguageModel)
        self._tokens.append(samples_per_second * model.spec.input_shape[0])
        rates = {"throughput/tokens_per_second": self._tokens[-1], "throughput/mfu": self._tokens[-1] * self._share_of_a_token}
        known = {name: value for name, value in rates.items() if value == value}
        return super().rates(trainer, model, samples_per_second) | known

    def facts(self) -> dict[str, Any]:
        if len(self._tokens) < 2:
            return super().facts()
        tokens = statistics.median(self._tokens[1:])
        mfu = tokens * self._share_of_a_token
        return super().facts() | {"tokens_per_second": tokens, "mfu": mfu if mfu == mfu else None}


def find_peak(name: str, precision: str) -> float | None:
    """Returns the peak by a device's name; None where it is not known, and for a part of one (MIG)."""
    words = set(name.replace("-", " ").split())
    if "MIG" in words or "64" in precision or (torch.backends.cuda.matmul.allow_tf32 and "32" in precision):
        return None
    return next((peaks["32" in precision] for known, peaks in PEAKS.items() if words.issuperset(known.split())), None)
