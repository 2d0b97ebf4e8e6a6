"""The floor where images are large: a plain loop, channels last; on a GPU in bfloat16, compiled if that is asked for. Its first
steps, in which it compiles, are not timed."""

import json
from typing import Any

import torch
from steady import Stopwatch
from torch.nn import functional
from workload import Workload


def main() -> None:
    work = Workload.given()
    device = torch.device(work.device)
    net: Any = work.model()
    net.to(device).to(memory_format=torch.channels_last)
    if work.compile:
        net.compile()
    images, labels = work.data(work.steps)
    optimizer = work.optimizer(net)
    stopwatch = Stopwatch(device, work.steps)
    for ids in torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).split(work.batch_size):
        inputs, targets = images[ids], labels[ids]
        if device.type == "cuda":
            inputs, targets = (tensor.pin_memory().to(device, non_blocking=True) for tensor in (inputs, targets))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            outputs = net((inputs.float() / 255).contiguous(memory_format=torch.channels_last))
            loss = functional.cross_entropy(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        stopwatch.count(len(ids))
    work.record.write_text(json.dumps(stopwatch.record()))


if __name__ == "__main__":
    main()
