"""What `warm=true` is to a run."""

from collections.abc import Callable

from omegaconf import DictConfig

from lockstep.launchers.command_line import CommandLine
from lockstep.runs.events import Subscribers
from lockstep.runs.identity import Identity
from lockstep.sweeps.jobs import computed_config


def test_it_is_no_part_of_what_a_run_is(compose: Callable[..., DictConfig]) -> None:
    """Its key is in no run.json, so that a run that is resumed leaves no server by itself, and in no identity of a job."""
    config = compose("warm=true")
    command = CommandLine(overrides=("seed=3", "warm=true"))
    subscribers = Subscribers.compose(config)
    assert Identity.new(command, None, subscribers.start_keys).overrides == ["seed=3"]
    assert computed_config(config, subscribers.settings) == computed_config(compose(), subscribers.settings)
