"""Hydra 1.4 with OmegaConf 2.4 beside 1.3 with 2.3: what the later ones warn of and the earlier ones need."""

import sys
import warnings
from collections.abc import Callable
from typing import Any

from hydra.utils import instantiate

_NO_WHITELIST = r"hydra\.utils\.instantiate\(\) resolved"
_LATER_REFUSED = (  # what 1.4 says that 1.5 will not take
    r"register_new_resolver\(\) is deprecated",
    "The version_base parameter is deprecated",
    "Hydra configured Python logging without an execution whitelist",
)


def ignore_deprecations() -> None:
    """Drops what is said of this package's own code, which runs on both."""
    for message in _LATER_REFUSED:
        warnings.filterwarnings("ignore", message=message)
    warnings.filterwarnings("ignore", message=_NO_WHITELIST, module=r"hydra\._internal\.callbacks")  # hydra.callbacks of a config


def look_up(path: str) -> Callable[..., Any]:
    """Returns what a `_target_` names, if it is not on Hydra's list of targets that run code. Hydra 1.4 asks for a list of those
    that are allowed instead, and warns where there is none; but that has to name the class of whatever a target returns, too.

    Raises InstantiationException for a target that is on the list, or is not there."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_NO_WHITELIST)
        return instantiate({"_target_": path, "_partial_": True})


def has_ended() -> bool:
    """Returns whether a sweep has come to its end, in a callback's on_multirun_end: Hydra 1.4 calls it, too, where the sweep was
    refused or broken off, while that exception is on its way."""
    return sys.exc_info()[1] is None
