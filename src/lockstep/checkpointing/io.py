"""Lightning's seam for reading and writing checkpoints."""

import logging
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from copy import copy
from itertools import zip_longest
from pathlib import Path
from pickle import PicklingError
from typing import Any, Literal

import numpy
from lightning.fabric.plugins.io import CheckpointIO
from torch import Tensor

from lockstep.checkpointing.files import name_unreadable, read_checkpoint, write_checkpoint
from lockstep.errors import ConfigError, NamedFailure

log = logging.getLogger(__name__)
_OF_PICKLE = (PicklingError, AttributeError, TypeError)
# Without these a run does not go on as it was; an object in them is refused, and elsewhere left out.
_NEEDED = ("state_dict", "optimizer_states", "lr_schedulers", "loops", "callbacks", "current_model_state", "averaging_state")


class AtomicCheckpointIO(CheckpointIO):
    """Writes checkpoints that are whole or not there, and reads none that is damaged or needs code to be run.

    Args:
        on_save_error: "fail" ends the run when a checkpoint can't be written, "warn" says so and goes on training;
            the earlier checkpoints stay either way.
        async: (a keyword of Python's, so it comes as **choice) copy the state, write it in the background. One write is in
            flight at a time; the next save and `teardown` wait for it, and raise what went wrong in it.

    `storage_options={"keep_as": NAME}` of a save keeps the file it replaces under that name.
    """

    def __init__(self, on_save_error: Literal["fail", "warn"] = "fail", **choice: bool) -> None:
        self.on_save_error, self.asynchronous = on_save_error, choice.pop("async", False)
        if choice:
            raise TypeError(f"AtomicCheckpointIO got an unexpected keyword argument '{next(iter(choice))}'")
        self._thread: ThreadPoolExecutor | None = None
        self._in_flight: Future[None] | None = None
        self._copy: Any = None  # of the state that was saved last
        self._left_out: set[str] = set()  # keys of values that would not load again

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        keep_as = (storage_options or {}).get("keep_as")
        self.save(checkpoint, Path(path), lambda content: self._write_plain(content, Path(path), keep_as))

    def _write_plain(self, content: dict[str, Any], path: Path, keep_as: str | None) -> None:
        """Leave out what a module, or a callback in its state, has added to the checkpoint and would not load again."""
        try:
            write_checkpoint(_without(content, self._left_out), path, keep_as)
        except (ConfigError, *_OF_PICKLE):
            states = {f"callbacks.{name}": state for name, state in content.get("callbacks", {}).items()}
            added = {name: value for name, value in (content | states).items() if name not in self._left_out | {*_NEEDED}}
            lines = {name: line for name, value in added.items() if (line := name_unreadable(value, name)) is not None}
            if not lines:
                raise
            for name, line in lines.items():
                log.warning(f"Checkpoints are written without {name}, which a resumption will lack: {line}")
            self._left_out |= lines.keys()
            write_checkpoint(_without(content, self._left_out), path, keep_as)

    def save(self, content: Any, path: Path, write: Callable[[Any], None]) -> None:
        """Has `write(content)` write the checkpoint `path`; in the background it is given a copy on the CPU."""
        self.wait()
        try:
            content = _with_plain_numbers(content)
        except RecursionError:
            raise CheckpointError(f"{path}: the checkpoint was not written (a value in it contains itself)") from None
        if self.asynchronous:
            self._thread = self._thread or ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
            self._copy = _snapshot(content, self._copy)
            self._in_flight = self._thread.submit(self._write, self._copy, path, write)
        else:
            self._write(content, path, write)

    def _write(self, content: Any, path: Path, write: Callable[[Any], None]) -> None:
        """Raises what has kept a checkpoint from being written, or says so, as `on_save_error` has it."""
        try:
            write(content)
        except (OSError, RuntimeError, ConfigError, *_OF_PICKLE) as error:  # torch's writer makes a full disk a RuntimeError
            if (accident := _death_of_a_worker(error)) is not None:
                raise accident from None
            line = f"{path}: the checkpoint was not written ({_reason(error, content)}); earlier ones are untouched"
            if self.on_save_error != "warn":
                raise CheckpointError(line) from (None if isinstance(error, ConfigError) else error)
            log.warning(line)

    def load_checkpoint(self, path: str | Path, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Loads to the CPU, and with weights_only=True whatever is asked for."""
        self.wait()
        return read_checkpoint("checkpoint", Path(path))

    def remove_checkpoint(self, path: str | Path) -> None:
        """Waits for the write in flight first: until then the file to be removed may be the only one."""
        self.wait()
        Path(path).unlink(missing_ok=True)

    def wait(self) -> None:
        """Waits until no write is in flight."""
        if self._in_flight is not None:
            done, self._in_flight = self._in_flight, None
            done.result()

    def teardown(self) -> None:
        thread, self._thread, self._copy = self._thread, None, None
        with thread or nullcontext():  # which it is shut down by
            self.wait()


def _without(content: dict[str, Any], names: set[str]) -> dict[str, Any]:
    states = {name: state for name, state in content.get("callbacks", {}).items() if f"callbacks.{name}" not in names}
    kept = {name: value for name, value in content.items() if name not in names}
    return kept | ({"callbacks": states} if states else {}) if names else content


class CheckpointError(NamedFailure):
    """A checkpoint could not be written."""


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """The error, the one behind it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _with_plain_numbers(content: Any) -> Any:
    """The same with Python's numbers for numpy's, such as a mean or a score in a callback's state, which would not load again."""
    if isinstance(content, numpy.generic):
        return content.item()
    if type(content) in (dict, OrderedDict):
        plain = copy(content)  # with the versions of modules, an attribute of a state_dict
        plain.clear()
        plain.update((_with_plain_numbers(key), _with_plain_numbers(value)) for key, value in content.items())
        return plain
    if type(content) in (list, tuple):
        return type(content)(map(_with_plain_numbers, content))
    return content


def _snapshot(content: Any, before: Any = None) -> Any:
    """A copy on the CPU that training can't change any more, in the memory of the one before: new memory takes thrice as long. By
    lightning_utilities' apply_to_collection a range, a frozen dataclass or a config would raise."""
    if isinstance(content, Tensor) and not content.is_meta:
        layout = content.shape, content.stride(), content.dtype, content.is_meta
        is_alike = type(before) is Tensor and (before.shape, before.stride(), before.dtype, before.is_meta) == layout
        return before.copy_(content.detach()) if is_alike else content.detach().to("cpu", copy=True)
    if isinstance(content, dict):
        return {key: _snapshot(value, before.get(key) if isinstance(before, dict) else None) for key, value in content.items()}
    if isinstance(content, list | tuple):
        earlier = before if type(before) is type(content) else ()
        return type(content)(_snapshot(*pair) for pair in zip_longest(content, earlier[: len(content)]))
    return content


def _death_of_a_worker(error: Exception) -> BaseException | None:
    """What torch's handler of SIGCHLD raises when a data worker has died, in whatever the main thread is doing then."""
    for cause in chain_of(error):
        modules = [frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(cause.__traceback__)]
        if "torch.utils.data._utils.signal_handling" in modules:
            return cause
    return None


def _reason(error: Exception, content: Any) -> str:
    """What the operating system said, if it is behind the error; or which value is."""
    said = (cause.strerror for cause in chain_of(error) if isinstance(cause, OSError) and cause.strerror)
    return next(said, None) or name_unreadable(content) or " ".join(str(error).split())
