"""Base class of callbacks that only observe training; an error in one of them never ends a run."""

import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lightning import Callback

from lockstep.errors import ConfigError

log = logging.getLogger(__name__)

_WATCHED = ("setup", "teardown", "load_state_dict", "stepped")  # in addition to the hooks, whose names begin with on_
_WATCHED_TO_THE_END = ("facts", "state_dict")  # still called after a monitor was switched off


class Monitor:
    """Base class, to be listed first, of a callback that observes training without changing it.

    When one of its hooks raises, the error is logged in one line and the callback is switched off for the rest of the run. Only a
    ConfigError ends the run.
    """

    is_off = False

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


def watched(method: Callable[..., Any], to_the_end: bool = False) -> Callable[..., Any]:
    """Wrap a method of a Monitor, so that an error in it switches the monitor off. `to_the_end`: call it even after that."""

    @functools.wraps(method)
    def call(self: Monitor, *arguments: Any, **named: Any) -> Any:
        if self.is_off and not to_the_end:
            return None
        try:
            return method(self, *arguments, **named)
        except ConfigError:
            raise
        except Exception as error:
            if not self.is_off:
                self.is_off = True
                reason = " ".join(f"{method.__name__}: {type(error).__name__}: {error}".split())
                log.warning(f"{type(self).__name__} is switched off for the rest of the run: {reason}")
                with suppress(Exception):
                    self.release()

    call.is_watched = True  # pyright: ignore[reportAttributeAccessIssue]
    return call


# For a hook with a collective: a process whose monitor is off still takes part, or the others would wait for it.
watched_to_the_end = functools.partial(watched, to_the_end=True)
