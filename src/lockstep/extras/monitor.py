"""The base class of callbacks that only look: what goes wrong in one of them never ends a run."""

import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lightning import Callback

from lockstep.errors import ConfigError

log = logging.getLogger(__name__)

_WATCHED = ("setup", "teardown", "load_state_dict", "stepped", "prepare")  # beside the hooks, whose names begin with on_
_WATCHED_TO_THE_END = ("facts", "state_dict")  # what a monitor has seen until it was switched off still counts


class Monitor:
    """A callback that looks at training and does not change it; the first base of its class.

    It is switched off for the rest of the run when one of its hooks raises, which is logged in one line. Only a ConfigError ends
    the run. Processes exchange something in a hook that is `together`, by `synchronize`: a monitor that has failed in one of them
    is switched off in all, and none waits for another.
    """

    is_off = False
    _is_off_everywhere = False

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name in dir(cls):
            method = getattr(cls, name)
            if method is getattr(Callback, name, None) or hasattr(method, "is_watched"):
                continue
            if name.startswith("on_") or name in (*_WATCHED, *_WATCHED_TO_THE_END):
                setattr(cls, name, watched(method, to_the_end=name in _WATCHED_TO_THE_END))

    def release(self) -> None:
        """Remove what the monitor has registered elsewhere; called when it is switched off."""

    def switch_off(self, reason: str) -> None:
        if not self.is_off:
            self.is_off = True
            log.warning(f"{type(self).__name__} is switched off for the rest of the run: {' '.join(reason.split())}")
            with suppress(Exception):
                self.release()

    def synchronize(self, trainer: Any, prepare: Callable[[], Any]) -> Any:
        """Return what `prepare` returns in this process, None if the monitor is off. A collective: it is off in all or none."""
        if self._is_off_everywhere:
            return None
        prepared = self.prepare(prepare)
        if trainer.world_size > 1 and not trainer.strategy.reduce_boolean_decision(not self.is_off, all=True):
            self._is_off_everywhere = True
            self.switch_off("it failed in another process")
        return None if self.is_off else prepared

    def prepare(self, function: Callable[[], Any]) -> Any:
        return function()


def watched(method: Callable[..., Any], to_the_end: bool = False) -> Callable[..., Any]:
    """Decorate a method of a Monitor that others are given to call. `to_the_end`: call it after the monitor is off, too."""

    @functools.wraps(method)
    def call(self: Monitor, *arguments: Any, **named: Any) -> Any:
        if self.is_off and not to_the_end:
            return None
        try:
            return method(self, *arguments, **named)
        except ConfigError:
            raise
        except Exception as error:
            self.switch_off(f"{method.__name__}: {type(error).__name__}: {error}")

    call.is_watched = True  # pyright: ignore[reportAttributeAccessIssue]
    return call


def together(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a hook of a Monitor in which its processes `synchronize`."""
    return watched(hook, to_the_end=True)
