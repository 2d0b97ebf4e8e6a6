"""From a node of the config to an object, by Hydra."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from lockstep.config.arguments import arguments_of, shown
from lockstep.config.overrides import nodes
from lockstep.errors import ConfigError, config_error

_lookup = functools.cache(lambda path: instantiate({"_target_": path, "_partial_": True}).func)


def construct(key: str, node: Any, given: Mapping[str, Any] | None = None) -> Any:
    """Call the node's `_target_` with the node's values and those of the `given` ones that it takes.

    Nodes within the node that have a target are constructed first; with `_partial_: true` it is a functools.partial. Nodes are
    plain containers. Raise ConfigError, naming the key, for an argument that the target does not take, lacks or refuses.
    """
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise config_error(key, shown(node), "use a group with a _target_")
    for where, below in targets_in({key: node}):
        values = {name: value for name, value in below.items() if not name.startswith("_")}
        arguments_of(resolve(where, below["_target_"])).check(where, values)
    with naming(key):
        make = instantiate(dict(node) | {"_partial_": True}, _convert_="all")
        if node.get("_partial_"):
            return make
        takes = arguments_of(make.func).takes
        passed = {name: value for name, value in (given or {}).items() if takes(name)}
        for name in passed.keys() & node.keys():
            raise config_error(f"{key}.{name}", shown(node[name]), "is set by Lockstep; remove it from the config")
        return make(**passed)


def resolve(key: str, path: Any) -> Callable[..., Any]:
    """Return the callable that `key`'s `_target_` names. Hydra refuses targets that run code. Raise ConfigError where there is no
    such thing; a bug in the module that is imported stays what it is."""
    try:
        return _lookup(str(path))
    except InstantiationException as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if not isinstance(cause, ImportError | AttributeError | ConfigError | InstantiationException):
            raise cause from None
        accepted = f"{cause}; use the full name of a class or function, lockstep.nets.CNN for example"
        raise config_error(f"{key}._target_", shown(path), accepted) from error


def targets_in(config: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the groups with a `_target_` in plain containers, each with its key."""
    for key, value in (("", config), *nodes(config)):
        if isinstance(value, Mapping) and "_target_" in value:
            yield key, value


@contextmanager
def naming(key: str) -> Iterator[None]:
    """Put the key before what a class refuses in the block. Raise any other error of the class as it is."""
    try:
        yield
    except Exception as error:
        from lockstep.config.hydra_errors import refusal

        refused = refusal(key, error)
        raise refused from refused.__cause__
