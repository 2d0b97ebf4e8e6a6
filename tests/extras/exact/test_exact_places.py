"""Models of users under trainer.exact: the verdict is the truth, and names the operation at which the bits part."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from in_process import become_rank
from ranks import in_ranks

models = pytest.importorskip("exact_models")
places = pytest.importorskip("lockstep.extras.bit_parity.places")
processes_of = pytest.importorskip("lockstep.extras.parity.processes")
sides = pytest.importorskip("lockstep.extras.parity.sides")

SOME = [
    "WeightedValidation",
    "ReplacedBuffer",
    "GlobalGenerator",
    "RankInBackward",
    "NoiseInOptimizer",
    "WorldSizeInRate",
    "CentreAfterBatch",
    "Alternates",
]
REFUSED = ["OwnGenerator", "OwnNumpyGenerator", "RankGenerator"]


def train_some(rank: int, world_size: int, folder: Path) -> dict[str, str]:
    become_rank(rank, world_size)
    return models.train([*SOME, *REFUSED], world_size, folder)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The different hashes of the weights and buffers that each model ends with, on one process and on two."""
    each: list[dict[str, str]] = []
    for size in (1, 2):
        folder = tmp_path_factory.mktemp(f"group{size}")
        each += in_ranks(size, partial(train_some, folder=folder), folder)
    return {name: {one[name] for one in each} for name in [*SOME, *REFUSED]}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with processes_of.Processes(3, tmp_path_factory.mktemp("parity")) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_the_verdict_is_the_truth_and_names_the_place(name: str, truth: dict[str, set[str]], processes: Any) -> None:
    equal, place = models.verdict(name, processes)
    assert models.is_right(name, len(truth[name]) == 1, equal, place), (truth[name], place)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_generator_that_a_model_holds_is_refused_by_name_in_all_processes(name: str, truth: dict[str, set[str]]) -> None:
    assert models.is_refused(name, truth[name]), truth[name]


def test_there_are_fifty_of_which_half_do_not_keep_their_bits() -> None:
    assert len(models.SAME) >= 25 <= len(models.OTHER)
    assert len(models.MODELS) == len(models.SAME) + len(models.OTHER)


NET = [["batch", "", "x"], ["enter", "net", "x"], ["enter", "net.0", "x"], ["leave", "net.0", "y"], ["leave", "net", "y"]]
BACK = [
    ["returned", "", "l"],
    ["gradient of the output", "net.0", "g"],
    ["gradient of the output", "net", "g"],
    ["gradient", "net.0.weight", "w"],
]


KEPT = {"net.0.kept": "0"}


def traced(events: list[list[str]], state: dict[str, str] = KEPT, begun: dict[str, str] = KEPT) -> Any:
    """A trace of two steps, the second of which has these events; and the state before it and before the first."""
    key = {"phase": "train", "batch": 0, "stage": "micro-batch", "number": 1}
    spans = [key | {"step": 0, "state": begun, "events": NET}, key | {"step": 1, "state": state, "events": events}]
    return sides.Findings([], {"trace": [spans], "modules": {"": "Own", "net": "Sequential", "net.0": "Noise"}})


def find(*arguments: Any) -> Any:
    """The place where such a trace leaves that of NET and BACK."""
    return places.first_difference(traced(NET + BACK), traced(*arguments))


def changed(at: int) -> list[list[str]]:
    events = [list(event) for event in NET + BACK]
    events[at][2] = "another"
    return events


@pytest.mark.parametrize(
    ("events", "what"),
    [
        (changed(0), "the batch that it gets"),
        (changed(2), "net (Sequential)"),
        (changed(3), "net.0 (Noise)"),
        (changed(5), "Own's training_step"),
        (changed(6), "the backward pass of Own's training_step"),
        (changed(8), "the backward pass of net.0 (Noise)"),
        ([*NET[:2], ["enter", "net.1", "x"]], "net (Sequential)"),
        (NET[:4], "net (Sequential)"),
    ],
)
def test_the_place_is_the_first_operation_that_gives_something_else_for_the_same(events: list[list[str]], what: str) -> None:
    place = find(events)
    assert (place.step, place.worker, place.what) == (1, 1, what)


def test_what_a_place_may_read_is_named_with_where_it_comes_from() -> None:
    assert "may read net.0.kept, which is not the same: what the process has" in find(changed(3), {"net.0.kept": "1"}).why
    begun = {"net.0.kept": "2"}
    assert "it begins as another one in each process" in find(changed(3), {"net.0.kept": "1"}, begun).why
    assert "it depends on the process" in find(changed(3), {"net.0.kept": "0"}).why


def test_the_same_traces_have_no_place() -> None:
    assert find(NET + BACK) is None


def test_what_one_process_does_not_repeat_is_the_reason_only_where_the_bits_part() -> None:
    other = traced(changed(3))
    for again, is_the_reason in ((changed(3), True), (changed(5), False), (NET + BACK, False)):
        place = places.place_among(traced(NET + BACK), other, traced(again))
        assert ("trains twice does not repeat it" in place.why) == is_the_reason
        assert place.what == "net.0 (Noise)"
    assert places.place_among(traced(NET + BACK), traced(NET + BACK), traced(NET + BACK)) is None
