"""The sum of the workers' gradients over processes, sent while the last worker of each process still computes others.

Gradients go in buckets, in the reverse order of the parameters, about that in which a backward pass finishes them, as
DistributedDataParallel sends them (Li et al., VLDB 2020). The tree in which a bucket is summed is the same whenever it is sent.
"""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.extras.exact.step import Step
from lockstep.extras.exact.tree import Vectors, add, sum_over_processes


class Exchange:
    """Sums vectors over processes, in place and one after another, beside what the caller computes: on a CPU in a thread, on a
    GPU in a stream of its own. One process has nothing to sum."""

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._queue: SimpleQueue[tuple[Tensor, Future[None]]] = SimpleQueue()
        self._sums: list[Future[None]] = []
        self.has_partners = dist.is_initialized() and dist.get_world_size() > 1
        if self.has_partners and self._stream is None:
            Thread(target=self._work, name="exchange of gradients", daemon=True).start()

    def start(self, vector: Tensor) -> None:
        if not self.has_partners:
            return
        if self._stream is None:
            self._sums.append(Future())
            self._queue.put((vector, self._sums[-1]))
            return
        self._stream.wait_stream(torch.cuda.current_stream(vector.device))
        vector.record_stream(self._stream)
        with torch.cuda.stream(self._stream):
            sum_over_processes([vector])

    def wait(self) -> None:
        """Returns when all sums are there. Raises what one of them has raised."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
        sums, self._sums = self._sums, []
        for one in sums:
            one.result()

    def _work(self) -> None:
        while True:
            vector, done = self._queue.get()
            try:
                sum_over_processes([vector])
            except BaseException as error:  # told to the thread that waits
                done.set_exception(error)
            else:
                done.set_result(None)


class Overlap:
    """The sum of a step, from within the backward pass of a process's last worker on.

    Args:
        own: the sums of what the process's other workers have left, in the order in which they are added.
        is_early: are gradients sent as they become ready?

    Attributes:
        has_changed: has any process changed a gradient that was sent already? All were sent once more then.
    """

    def __init__(self, step: Step, own: list[Vectors], exchange: Exchange, is_early: bool) -> None:
        self._step, self._own, self._exchange = step, own, exchange
        self._is_early = is_early and exchange.has_partners
        self._awaited = [set(range(len(bucket))) for bucket in step.buckets]
        self._handles: list[Any] = []
        self._sent: list[list[tuple[Tensor | None, int]]] = []
        self._sums: Vectors = []
        self.has_changed = False

    def __enter__(self) -> "Overlap":
        """Adds hooks that come after those of a user's own, which may change gradients."""
        if self._is_early:
            for number, bucket in enumerate(self._step.buckets):
                for place, parameter in enumerate(bucket):
                    self._handles.append(parameter.register_post_accumulate_grad_hook(self._hook(number, place)))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, number: int, place: int) -> Callable[[Tensor], None]:
        def note(_: Tensor) -> None:
            self._awaited[number].discard(place)
            while len(self._sums) < len(self._awaited) and not self._awaited[len(self._sums)]:
                self._send()

        return note

    @torch.no_grad()
    def _send(self) -> None:
        number = len(self._sums)
        self._sent.append(self._versions(number))
        vector = self._step.bucket(number)
        for one in self._own:
            vector.add_(one[number])
        self._sums.append(vector)
        self._exchange.start(vector)

    def _versions(self, number: int) -> list[tuple[Tensor | None, int]]:
        gradients = [parameter.grad for parameter in self._step.buckets[number]]
        return [(gradient, -1 if gradient is None else gradient._version) for gradient in gradients]

    def _differs(self, number: int) -> bool:
        before, now = self._sent[number], self._versions(number)
        return any(a is not b or m != n for (a, m), (b, n) in zip(before, now, strict=True))

    @torch.no_grad()
    def finish(self, rest: Vectors) -> Vectors:
        """Returns the sums over all workers: of each bucket, and of `rest`, what the last worker has left beside gradients."""
        changed = torch.tensor([any(map(self._differs, range(len(self._sent))))], dtype=torch.float64, device=rest[0].device)
        self._send_all()
        for one in self._own:
            add(rest, one[len(self._sums) :])
        self._exchange.wait()
        sum_over_processes([*rest, changed])
        self.has_changed = bool(changed.item())
        if self.has_changed:
            self._sums = []
            self._send_all()
            self._exchange.wait()
        return [*self._sums, *rest]

    def _send_all(self) -> None:
        while len(self._sums) < len(self._step.buckets):
            self._send()
