"""Where the bits of two trainings part: the first operation, in the order of execution, that gives another result from the same
inputs. It compares what tracer.py has written. Imports no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from lockstep.console import join_first
from lockstep.extras.parity.comparison import Comparison
from lockstep.extras.parity.processes import Processes, Roles, train_once
from lockstep.extras.parity.sides import Findings

Span = dict[str, Any]  # see tracer.py
Event = list[str]  # kind, name, hash
_STEP = "training_step"
_TRACER = "lockstep.extras.bit_parity.tracer.Tracer"  # a string, since it imports torch
_OUTSIDE = {
    "state": ("what happens between two steps", "weights and buffers were the same after the last one, and {name} no longer is"),
    "summed": (
        "the sum of gradients over all micro-batches",
        "those of each micro-batch are the same, and that of {name} is not",
    ),
    "rates": ("the learning rate", "all gradients are the same"),
    "given": (
        "what changes gradients before the optimizer's step (hooks, clipping)",
        "their sum is the same, and the gradient of {name} is not",
    ),
    "weights": ("the optimizer", "all gradients are the same, and {name} is not after its step"),
}
_REPEATS_NOT = (
    "one process that trains twice does not repeat it either: it depends on the time, on the order of a set, or on a generator "
    "without a seed"
)
_READ = "it may read {}, which is not the same: "
_ALWAYS = "it begins as another one in each process"
_LEFT = "what the process has computed before has changed it"
_PROCESS = (
    "no attribute or global variable beside it differs, so that it depends on the process (its rank, how many there are, what "
    "others send), or on state elsewhere"
)


@dataclass(frozen=True)
class Place:
    """`phase`: train, validate or test. `worker`: the micro-batch, None for what is done once a step. `owner`: the name of the
    module whose code it is; empty for the LightningModule itself. `what`: the operation in words; `evidence`: by what it is
    known."""

    step: int
    phase: str
    worker: int | None
    owner: str
    what: str
    evidence: str
    why: str = ""

    def __str__(self) -> str:
        when = f"step {self.step}" if self.phase == "train" else f"{self.phase} after step {self.step - 1}"
        where = "" if self.worker is None else f", micro-batch {self.worker}"
        return f"Where: {when}{where}: {self.what}; {self.evidence}.\nWhy: {self.why}."


def find_place(comparison: Comparison, processes: Processes) -> Place | None:
    """Trains both sides once more, freely, and one process a second time, with a record of what each module computes."""
    sides = replace(comparison.sides, steps=comparison.steps_needed)
    roles: Roles = {name: (_TRACER, {}) for name in ("reference", "other", "control")}
    processes.end()  # they have trained before, not all of them as often
    traced = train_once(sides, processes, roles)
    return place_among(traced["reference"], traced["other"], again=traced["control"])


def place_among(reference: Findings, other: Findings, again: Findings) -> Place | None:
    """Returns None if all that both compute has the same bits. `again` is a second training of the reference."""
    place, unrepeated = first_difference(reference, other), first_difference(reference, again)
    if unrepeated is not None and (place is None or place.what == unrepeated.what):
        return replace(unrepeated, why=_REPEATS_NOT)
    return place


def first_difference(reference: Findings, other: Findings) -> Place | None:
    """Returns the place in the micro-batch that differs first, of the first batch in which anything does."""
    modules = reference.facts["modules"]
    own = {_key(span): span for span in reference.facts["trace"][0]}
    pairs = [(own.get(_key(span, 0)), span, spans[0]) for spans in other.facts["trace"] for span in spans]
    differing = [(at, a, b, begun) for a, b, begun in pairs if a is not None and (at := _differ_at(a, b)) is not None]
    if not differing:
        return None
    order = list(dict.fromkeys(_group(span) for span in own.values()))
    at, a, b, begun = min(differing, key=lambda one: (order.index(_group(one[2])), one[0], one[2]["number"]))
    place = _name(at, a, b, modules)
    read = _may_read(place, a, b)
    at_first = _differing_state(reference.facts["trace"][0][0], begun)
    return replace(place, why=f"{_READ.format(join_first(read))}{_ALWAYS if at_first & {*read} else _LEFT}" if read else _PROCESS)


def _key(span: Span, process: int | None = None) -> tuple[Any, ...]:
    """Returns what identifies a span on both sides; what each process does is compared with what process 0 of the other has
    done."""
    number = span["number"] if span["stage"] == "micro-batch" or process is None else process
    return (*_group(span), number)


def _group(span: Span) -> tuple[Any, ...]:
    return span["step"], span["phase"], span["batch"], span["stage"]


def _differ_at(a: Span, b: Span) -> int | None:
    events = zip_longest(a["events"], b["events"])
    return next((at for at, (one, another) in enumerate(events) if one != another), None)


def _name(at: int, a: Span, b: Span, modules: dict[str, str]) -> Place:
    """From the events before: those are the same on both sides."""
    before, rest = b["events"][:at], b["events"][at:] or a["events"][at:]
    kind, name, _ = rest[0]
    is_same_call = len(a["events"]) > at < len(b["events"]) and a["events"][at][:2] == rest[0][:2]
    worker = b["number"] if b["stage"] == "micro-batch" else None
    if kind in _OUTSIDE:
        what, evidence = _OUTSIDE[kind]
        return Place(b["step"], b["phase"], worker, "", what, evidence.format(name=name))
    owner, what, evidence = _operation(kind, name, before, rest, is_same_call)
    return Place(b["step"], b["phase"], worker, owner, what.format(owner=_called(owner, modules)), evidence)


def _operation(kind: str, name: str, before: Sequence[Event], rest: Sequence[Event], is_same_call: bool) -> tuple[str, str, str]:
    """Returns the module whose code it is, the operation and what shows it."""
    if kind == "batch":
        return "", "the batch that it gets", "the model has not begun"
    around = _entered(before)
    if not is_same_call:
        return around, "{owner}", f"what it calls is the same up to {name or _STEP}, which only one of both calls"
    if kind == "leave":
        return name, "{owner}", "its inputs are the same, and its output is not"
    if kind == "enter":
        return around, "{owner}", f"all is the same up to what it gives to {name or 'forward'}"
    if kind == "returned":
        return "", "{owner}", "all modules give it the same, and what it returns is not"
    return _in_backward(kind, name, before, rest)


def _in_backward(kind: str, name: str, before: Sequence[Event], rest: Sequence[Event]) -> tuple[str, str, str]:
    """A gradient of a tensor is of the output of one module and of the input of those that take it: it comes from these."""
    reached = {event[1] for event in before if event[0] == "gradient of the output"}
    if kind == "gradient":
        owner = name.rpartition(".")[0]
        return owner, "the backward pass of {owner}", f"the gradient of its output is the same, and that of {name} is not"
    same_tensor = [event for event in rest if event[2] == rest[0][2]]
    takers = [event[1] for event in same_tensor if event[0] == "gradient of the input" and event[1] in reached]
    if takers:
        return takers[-1], "the backward pass of {owner}", "the gradient of its output is the same, and that of its input is not"
    owner = _parent(name) if reached else ""
    return owner, "the backward pass of {owner}", f"the forward pass is the same, and the {kind} of {name or _STEP} is not"


def _entered(events: Sequence[Event]) -> str:
    """Returns the module that is computing after these, the innermost."""
    stack = [""]
    for kind, name, _ in events:
        if kind == "enter":
            stack.append(name)
        elif kind == "leave" and name in stack[1:]:
            del stack[len(stack) - 1 - stack[::-1].index(name) :]
    return stack[-1]


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _called(name: str, modules: dict[str, str]) -> str:
    return f"{name} ({modules[name]})" if name else f"{modules['']}'s {_STEP}"


def _may_read(place: Place, a: Span, b: Span) -> list[str]:
    """Returns what is not the same when the span begins: of the state of the place, or of the modules around it, or of all."""
    differing = _differing_state(a, b)
    for prefix in [f"{place.owner}.", *(f"{parent}." for parent in _parents(place.owner)), ""] if place.owner else [""]:
        if own := sorted(name for name in differing if name.startswith(prefix) and "." not in name.removeprefix(prefix)):
            return own
    return sorted(differing)


def _differing_state(a: Span, b: Span) -> set[str]:
    return {name for name, value in b["state"].items() if a["state"].get(name) != value}


def _parents(name: str) -> Iterator[str]:
    while name := _parent(name):
        yield name
