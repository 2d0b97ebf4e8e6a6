"""What happens to a run, for whoever wants to act on it: objects that the config composes under `events`, as it does callbacks.

They live where the run's directory is held, in the parent of the ranks or in rank zero, and import no torch: a callback of
Lightning's sees what happens in training.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import hydra
from omegaconf import DictConfig, OmegaConf

from lockstep.config.construct import construct
from lockstep.config.overrides import override_key, unquote
from lockstep.config.plan import Plan
from lockstep.errors import config_error
from lockstep.launchers.environment import register_resolvers
from lockstep.places import CONF

log = logging.getLogger(__name__)
T = TypeVar("T")


class Origin(NamedTuple):
    """A checkpoint of another run that a run begins from, and how far training was."""

    path: Path
    step: int
    epoch: int


class RunEvents:
    """The base class of a subscriber; each method does nothing until it is overridden.

    Whatever `begin` and the methods after it raise is logged as one line and does not end the run. The methods before it may
    raise ConfigError, by which the run or the command is refused.
    """

    settings: ClassVar[Sequence[str]] = ()  # root keys of the config that change nothing of what a run computes

    def locate(self, wanted: str, values: Mapping[str, str]) -> Path | None:
        """Returns the directory of the run that `resume=WANTED` names, None where that is not a name of this subscriber's.

        `values` are those of the command line's overrides.
        """

    def arguments(self, arguments: list[str], values: Mapping[str, str]) -> list[str]:
        """Returns the arguments of the command of a new run as Hydra is to read them."""
        return arguments

    def check(self, cfg: DictConfig, plan: Plan) -> None:
        """Called when a config is validated, before any directory exists."""

    def derive(self, config: DictConfig) -> None:
        """Sets values that follow from others, before the config is validated."""

    def claim(self, cfg: DictConfig, directory: Path, run_id: str, is_new: bool) -> None:
        """Called when the run has taken its directory and has not written into it yet."""

    def origin(self, cfg: DictConfig) -> Origin | None:
        """Returns the checkpoint of another run that this one begins from, None where it begins anew."""

    def describe_origin(self, cfg: DictConfig) -> dict[str, Any] | None:
        """Returns what the record of a new run says of the checkpoint that it begins from."""

    def built(self, cfg: DictConfig, model: Any, trainer: Any, checkpoint: Path | None) -> None:
        """Called in each process that trains, when all callbacks are there. `checkpoint`: what training goes on from."""

    def begin(self, cfg: DictConfig, directory: Path) -> None:
        """Called when status.json says that the run is running."""

    def end(self, code: int) -> None:
        """Called last, with the exit code, in a run that has begun."""


class Subscribers:
    """Holds the subscribers of one config: none where it has no group `events`, as configs saved before there was one."""

    def __init__(self, subscribers: Mapping[str, RunEvents]) -> None:
        self._subscribers = subscribers

    @classmethod
    def compose(cls, cfg: DictConfig) -> Self:
        nodes = {name: node for name, node in (OmegaConf.select(cfg, "events") or {}).items() if node is not None}
        for name, node in nodes.items():
            if not isinstance(node, DictConfig):
                raise config_error(f"events.{name}", node, "accepted is a group with a _target_, or null")
        return cls({name: construct(f"events.{name}", OmegaConf.to_container(nodes[name])) for name in nodes})

    @classmethod
    def before_composition(cls) -> Self:
        """Composes those of conf/events, while the run's own config is not composed yet."""
        register_resolvers()
        with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
            return cls.compose(hydra.compose("events/default"))

    def __iter__(self) -> Iterator[RunEvents]:
        return iter(self._subscribers.values())

    @property
    def settings(self) -> list[str]:
        return [key for subscriber in self for key in subscriber.settings]

    def arguments(self, arguments: list[str], values: Mapping[str, str]) -> list[str]:
        for subscriber in self:
            arguments = subscriber.arguments(arguments, values)
        return arguments

    def derive(self, config: DictConfig) -> None:
        for subscriber in self:
            subscriber.derive(config)

    def tell(self, event: str, *arguments: Any) -> None:
        """Call that method of each, `begin` or `end`; log what one raises."""
        for name, subscriber in self._subscribers.items():
            try:
                getattr(subscriber, event)(*arguments)
            except Exception as error:
                reason = " ".join(str(error).split()) or type(error).__name__
                log.warning(f"events.{name} has failed in {event} ({type(error).__name__}: {reason}); the run goes on")


def values_by_key(overrides: Sequence[str]) -> dict[str, str]:
    """Returns the value of each key that is overridden, as text."""
    return {override_key(item): unquote(item.partition("=")[2]) for item in overrides if "=" in item}


def first(answers: Iterable[T | None]) -> T | None:
    """Returns the first answer of several subscribers that is one."""
    return next((answer for answer in answers if answer is not None), None)
