"""From a node of the config to an object, by Hydra; and one line that names the key for what a class refuses."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from lockstep.config.arguments import Arguments, arguments_of, shown
from lockstep.config.targets import resolve
from lockstep.errors import ConfigError, config_error

_OF_HYDRA = ("_target_", "_partial_", "_args_", "_recursive_", "_convert_")
_OTHER_NAMESPACE = (
    "derives from a class of pytorch_lightning, which the Trainer of lightning does not know; write "
    "`import lightning.pytorch as pl` for `import pytorch_lightning as pl`"
)
_OTHER_ARGUMENTS = re.compile(r"(unexpected keyword|missing \d+ required|multiple values for).* argument")


def construct(key: str, node: Any, given: Mapping[str, Any] | None = None) -> Any:
    """Call the node's `_target_` with the node's values and those of the `given` ones that it takes.

    Nodes within the node that have a target are constructed first; with `_partial_: true` it is a functools.partial. Nodes are
    plain containers. Raise ConfigError, naming the key, for an argument that the target does not take, lacks or refuses.
    """
    arguments = arguments_in(key, node)
    passed = {name: value for name, value in (given or {}).items() if arguments.takes(name)}
    for name in passed.keys() & node.keys():
        raise config_error(f"{key}.{name}", shown(node[name]), "is set by Lockstep; remove it from the config")
    with naming(key):
        make = instantiate(dict(node) | {"_partial_": True}, _convert_="all")
    if node.get("_partial_"):
        return make
    for name in arguments.missing({*node, *passed}, len(node.get("_args_", ()))):
        raise config_error(f"{key}.{name}", "???", f"a value is required by {node['_target_']}")
    with naming(key):
        return make(**passed)


def arguments_in(key: str, node: Any) -> Arguments:
    """Return what the node's target takes. Raise ConfigError for a target that is not there, and for values in the node, and in
    those below it, that targets do not take."""
    if not isinstance(node, Mapping) or "_target_" not in node:
        value = f"{{{', '.join(map(str, node))}}}" if isinstance(node, Mapping) else shown(node)
        raise config_error(key, value, "accepted is a group with a _target_")
    target = resolve(key, node["_target_"])
    if any(kind.__module__.startswith("pytorch_lightning.") for kind in getattr(target, "__mro__", ())):
        raise config_error(f"{key}._target_", node["_target_"], _OTHER_NAMESPACE)
    arguments = arguments_of(target)
    values = {name: value for name, value in node.items() if name not in _OF_HYDRA}
    arguments.check(key, values)
    _check_below(key, values)
    _check_below(f"{key}._args_", node.get("_args_", ()))
    return arguments


def _check_below(key: str, values: Any) -> None:
    for name, value in values.items() if isinstance(values, Mapping) else enumerate(values):
        if isinstance(value, Mapping) and "_target_" in value:
            arguments_in(f"{key}.{name}", value)
        elif isinstance(value, Mapping | list | tuple):
            _check_below(f"{key}.{name}", value)


@contextmanager
def naming(key: str) -> Iterator[None]:
    """Put the key before what a class refuses within: a ValueError, an invalid regular expression, a library that is not
    installed, Lightning's MisconfigurationException, or an argument that it does not take. Raise any other error as it is."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        cause, below = error, ""
        while isinstance(cause, InstantiationException):
            below = below or str(cause).partition("full_key: ")[2].strip()
            if not isinstance(cause.__cause__, Exception):
                break
            cause = cause.__cause__
        if isinstance(cause, ConfigError) or not is_refusal(cause):
            raise cause from cause.__cause__
        raise refusal(".".join(filter(None, (key, below))), cause) from cause


def is_refusal(error: BaseException) -> bool:
    """True if the error says that a class does not accept its arguments."""
    is_lightning_s = type(error).__name__ == "MisconfigurationException"  # not imported here
    is_of_arguments = isinstance(error, TypeError) and _OTHER_ARGUMENTS.search(str(error)) is not None
    return isinstance(error, ValueError | ImportError | re.error | InstantiationException) or is_lightning_s or is_of_arguments


def refusal(key: str, error: BaseException) -> ConfigError:
    """Return the line KEY.NAME=VALUE: REASON if the message begins with NAME=VALUE, else KEY: MESSAGE."""
    message = " ".join(str(error).partition("\nfull_key")[0].split()) or type(error).__name__
    return ConfigError(f"{key}.{message}" if re.match(r"[\w.]+=\S*[^:]*: ", message) else f"{key}: {message}")
