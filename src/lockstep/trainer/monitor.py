"""Callbacks that only look: what goes wrong in one of them never ends a run."""

import functools
import logging
from collections.abc import Callable
from typing import Any

from lightning import Callback

from lockstep.errors import ConfigError

log = logging.getLogger(__name__)

_LOOKS = ("setup", "teardown", "load_state_dict", "begin", "stepped")  # beside the hooks, whose names begin with on_
_ANSWERS = ("facts", "state_dict")


class Monitor:
    """A callback that looks at training and changes nothing of it; this stands before its other bases. It is switched off for the
    rest of the run when one of its hooks raises, which is said in one line; only a ConfigError ends the run, before its first
    step.

    Processes that exchange something do so in a hook that is `together`, by `synchronize`: where the monitor has failed in one of
    them it is switched off in all, and none waits for another.
    """

    is_off = False
    _is_off_everywhere = False

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        for name in dir(cls):
            method, inherited = getattr(cls, name), getattr(Callback, name, None)
            if method is inherited or hasattr(method, "is_watched"):
                continue
            if name.startswith("on_") or name in _LOOKS:
                setattr(cls, name, watched(method))
            elif name in _ANSWERS:
                setattr(cls, name, _answering(method))

    def release(self) -> None:
        """Takes away what it has registered elsewhere; called when it is switched off."""

    def switch_off(self, reason: str) -> None:
        if self.is_off:
            return
        self.is_off = True
        log.warning(f"{type(self).__name__} is switched off for the rest of the run, which goes on: {' '.join(reason.split())}")
        try:
            self.release()
        except Exception as error:
            log.debug(f"{type(self).__name__} could not take away what it has registered", exc_info=error)

    def synchronize(self, trainer: Any, prepare: Callable[[], Any]) -> Any:
        """What `prepare` returns in this process, None where the monitor is off. A collective, after which it is off in all
        processes or in none: what they exchange next all of them do."""
        prepared = _attempt(self, prepare, "synchronize")
        if trainer.world_size > 1 and not trainer.strategy.reduce_boolean_decision(not self.is_off, all=True):
            self._is_off_everywhere = True
            self.switch_off("it failed in another process")
        return None if self.is_off else prepared


def watched(method: Callable[..., Any]) -> Callable[..., Any]:
    """Of a Monitor: it is not called any more once this is switched off, and what it raises switches it off. Hooks are watched
    without being marked; what is handed to others to be called is to be marked."""

    @functools.wraps(method)
    def look(self: Monitor, *arguments: Any, **named: Any) -> Any:
        return _attempt(self, functools.partial(method, self, *arguments, **named), method.__name__)

    return _marked(look)


def together(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a hook of a Monitor in which its processes `synchronize`, at a time that does not depend on whether it is off. It
    is called until all of them know that it is."""

    @functools.wraps(hook)
    def come(self: Monitor, trainer: Any, *arguments: Any, **named: Any) -> None:
        if self.is_off and (self._is_off_everywhere or trainer.world_size == 1):
            return
        try:
            hook(self, trainer, *arguments, **named)
        except ConfigError:
            raise
        except Exception as error:
            self.switch_off(f"{hook.__name__}: {type(error).__name__}: {error}")

    return _marked(come)


def _attempt(monitor: Monitor, function: Callable[[], Any], name: str) -> Any:
    if monitor.is_off:
        return None
    try:
        return function()
    except ConfigError:
        raise
    except Exception as error:
        monitor.switch_off(f"{name}: {type(error).__name__}: {error}")


def _answering(method: Callable[[Any], dict[str, Any]]) -> Callable[..., Any]:
    """What a monitor has seen until it was switched off still counts."""

    @functools.wraps(method)
    def answer(self: Monitor) -> dict[str, Any]:
        try:
            return method(self)
        except Exception as error:
            self.switch_off(f"{method.__name__}: {type(error).__name__}: {error}")
            return {}

    return _marked(answer)


def _marked(method: Any) -> Any:
    method.is_watched = True
    return method
