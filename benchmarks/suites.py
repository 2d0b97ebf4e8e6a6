"""Suites of competitors that are compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEPS = ("samples/s", "µs a step", "µs of processor", "of the floor", "of the floor, processor", "peak MiB")
STARTS = ("s in all", "s of processor in all")
# As competitors/workload.py does; beside whichever group of callbacks is chosen.
FLUSH = "+callbacks.flush_denormal._target_=steady_callback.FlushDenormal"
TURNS = "+callbacks.turns._target_=steady_callback.Turns"


@dataclass(frozen=True)
class Competitor:
    """`command` gives the arguments of Python, for a record to be left at a path. `starts_as_ranks`: True if it is started once
    for each process, as by torchrun; False if it starts its processes itself."""

    name: str
    command: Callable[[Path], Sequence[str]]
    processes: int = 1
    is_floor: bool = False
    starts_as_ranks: bool = False


@dataclass(frozen=True)
class Suite:
    """`in_turns`: True if the programs say where their clocks start and stop, by competitors/turns.py."""

    about: str
    columns: tuple[str, ...]
    competitors: Callable[[list[str]], list[Competitor]]
    in_turns: bool = False


def train_py(record: Path, *overrides: str) -> list[str]:
    """`python train.py` in a directory beside the record, from which this program copies the run's."""
    return [_program("whole"), _program("shipped"), str(record), *overrides]


def _program(name: str) -> str:
    return str(ROOT / "benchmarks" / "competitors" / f"{name}.py")


def _steps(net: str, shape: str, batch_size: int, steps: int, val_batches: int) -> Callable[[list[str]], list[Competitor]]:
    def competitors(overrides: list[str]) -> list[Competitor]:
        sizes = {"net": net, "shape": shape, "batch-size": batch_size, "steps": steps, "val-batches": val_batches}
        options = [item for name, value in sizes.items() for item in (f"--{name}", str(value))]
        result: list[Competitor] = []
        for processes in (1, 2):
            for program, what in (
                ("guide", "the guides' program, sample by sample"),
                ("bare", "a bare loop over data in memory"),
                ("barebones", "Lightning, barebones=True"),
            ):
                name = f"{what}, {processes} process{'es' * (processes > 1)}"
                command = by_record(program, options)
                result.append(Competitor(name, command, processes, program == "bare", starts_as_ranks=True))
            result.append(_shipped(net, shape, batch_size, steps, val_batches, processes, overrides))
        return result

    return competitors


def by_record(program: str, options: list[str]) -> Callable[[Path], list[str]]:
    return lambda record: [_program(program), *options, "--record", str(record)]


def _shipped(net: str, shape: str, batch: int, steps: int, val_batches: int, processes: int, more: list[str]) -> Competitor:
    data = ("datamodule=synthetic_images", f"datamodule.shape=[{shape}]", f"datamodule.batch_size={batch}")
    lengths = (f"datamodule.length={steps * batch * processes}", f"datamodule.val_length={max(1, val_batches * batch)}")
    fixed = ("trainer=cpu", "trainer.max_epochs=1", f"trainer.devices={processes}", "test=false", f"model={net}", FLUSH, TURNS)
    name = f"`python train.py`, {processes} process{'es' * (processes > 1)}"
    return Competitor(name, lambda record: train_py(record, *fixed, *data, *lengths, *more), processes)


def _startup(overrides: list[str]) -> list[Competitor]:
    def imports(_: Path) -> list[str]:
        return ["-c", "import torch, lightning"]

    def fast(processes: int) -> Callable[[Path], list[str]]:
        return lambda record: train_py(record, "trainer=cpu", "debug=fast", f"trainer.devices={processes}", *overrides)

    def first_step(_: Path) -> list[str]:
        return [str(ROOT / "train.py"), "trainer=cpu", "debug=fast", "+callbacks.end={_target_: first_step.End}", *overrides]

    return [
        Competitor("import torch, lightning", imports),
        Competitor("`python train.py trainer=cpu debug=fast`, to the end of its first step", first_step),
        Competitor("the same, to its end", fast(1)),
        Competitor("the same with trainer.devices=2, to its end", fast(2)),
        Competitor("`python train.py --cfg job`", lambda _: [str(ROOT / "train.py"), "--cfg", "job", *overrides]),
    ]


def _sweep(overrides: list[str]) -> list[Competitor]:
    """Eight jobs by hand would take eight times the second row of `startup`."""

    def jobs(count: int) -> Callable[[Path], list[str]]:
        seeds = ",".join(map(str, range(count)))
        command = [_program("whole"), str(ROOT / "train.py"), "-m", "trainer=cpu", "debug=fast", f"seed={seeds}", *overrides]
        return lambda _: command

    return [Competitor(f"a sweep of {count} job{'s' * (count > 1)}", jobs(count)) for count in (1, 8)]


_ZERO = "Denormal numbers are zero in all programs."
_SAME = "The same net, batches, optimizer and data for all; one epoch and one validation. `train.py` with all it does by default."
_SAME += f"\n{_ZERO}"
SUITES = {
    "mlp": Suite(
        f"MNIST's shapes, the guides' MLP (784-256-10), batches of 64.\n{_SAME}",
        STEPS,
        _steps("mlp", "1,28,28", 64, 1500, 100),
        in_turns=True,
    ),
    "cnn": Suite(f"The CNN on 28x28 images, batches of 64.\n{_SAME}", STEPS, _steps("cnn", "1,28,28", 64, 120, 8), in_turns=True),
    "resnet18": Suite(
        f"ResNet-18 on 32x32 images, batches of 32.\n{_SAME}", STEPS, _steps("resnet18", "3,32,32", 32, 25, 2), in_turns=True
    ),
    "startup": Suite(
        "From the command to the first step, and to the end: a step of training, of validation and of test, and pictures.",
        STARTS,
        _startup,
    ),
    "sweep": Suite("One step a job; what a job adds is a seventh of the difference.", STARTS, _sweep),
}
