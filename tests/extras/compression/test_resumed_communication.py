"""What a run goes on from that was begun with another way to share gradients."""

import logging
from typing import Any

import pytest
import torch

from lockstep.extras.compression.communication import HalfPrecision, LocalSGD, PowerSGD
from lockstep.extras.compression.strategy import Communication, load_communication

POWER: dict[str, Any] = {
    "kind": "PowerSGD of rank 2",
    "steps": 7,
    "rights": {"a": torch.ones(9, 2)},
    "errors": {"a": torch.ones(8, 9)},
}
LOCAL: dict[str, Any] = {"kind": "LocalSGD", "steps": 7, "state_dict": {"a": torch.ones(1)}, "optimizer_states": []}


@pytest.mark.parametrize(
    ("left", "communication", "said"),
    [
        (POWER, LocalSGD(), "PowerSGD of rank 2 is dropped: LocalSGD begins anew"),
        (LOCAL, PowerSGD(rank=2), "LocalSGD is dropped: PowerSGD of rank 2 begins anew"),
        (POWER, PowerSGD(rank=4), "PowerSGD of rank 2 is dropped: PowerSGD of rank 4 begins anew"),
        (LOCAL, HalfPrecision("float16"), "LocalSGD is dropped"),
        (LOCAL, None, "LocalSGD is dropped"),
    ],
)
def test_another_kind_begins_anew_and_says_so(
    left: dict[str, Any], communication: Communication | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        load_communication(communication, {"communication": [left, left]}, rank=0, world_size=2)
    assert caplog.messages == [f"trainer.strategy.communication: what the checkpoint carries of {said}"]
    assert getattr(communication, "steps", 0) == 0
    assert not getattr(communication, "rights", {})


@pytest.mark.parametrize(("left", "communication"), [(POWER, PowerSGD(rank=2)), (LOCAL, LocalSGD())])
def test_the_same_kind_goes_on_in_silence(left: dict[str, Any], communication: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        load_communication(communication, {"communication": [left, left]}, rank=1, world_size=2)
    assert communication.steps == 7
    assert communication.kind == left["kind"]
    assert not caplog.messages
