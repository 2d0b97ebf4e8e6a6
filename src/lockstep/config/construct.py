"""Construct the objects that a config names, by Hydra, after a check of the arguments that their classes take."""

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from inspect import Parameter
from typing import Any, Literal, Union, get_args, get_origin

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from lockstep.config.overrides import nodes
from lockstep.errors import ConfigError, config_error

_lookup = functools.cache(lambda path: instantiate({"_target_": path, "_partial_": True}).func)
_ARGUMENTS = re.compile(r"(unexpected keyword|missing \d+ required|multiple values for).* argument")
_NAMES_ARGUMENT = re.compile(r"[\w.]+=\S*[^:]*: ")  # NAME=VALUE: problem; fix
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", types.NoneType: "null"}
_PLAIN = (bool, int, float, str, types.NoneType, Literal, list, tuple, Sequence)


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
    """Return the callable that `key`'s `_target_` names. Hydra refuses targets that run code. Raise ConfigError if there is no
    such callable, and any other error of the imported module as it is."""
    try:
        return _lookup(str(path))
    except InstantiationException as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if not isinstance(cause, ImportError | AttributeError | ConfigError | InstantiationException):
            raise cause from None
        module, _, name = str(path).rpartition(".")
        near = get_close_matches(name, dir(sys.modules[module]), n=1) if module in sys.modules else []  # imported by Hydra
        fix = f"did you mean {module}.{near[0]}?" if near else "use the full name of a class or function, lockstep.nets.CNN say"
        raise config_error(f"{key}._target_", shown(path), f"{cause}; {fix}") from error


def targets_in(config: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the groups with a `_target_` in plain containers, each with its key."""
    for key, value in (("", config), *nodes(config)):
        if isinstance(value, Mapping) and "_target_" in value:
            yield key, value


@contextmanager
def naming(key: str) -> Iterator[None]:
    """Raise a ConfigError for what a target of the node at `key` refuses in the block: a ValueError, an invalid regular
    expression, a library that is not installed, Lightning's MisconfigurationException, or arguments that it does not take. Raise
    a bug as it is."""
    try:
        yield
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause, InstantiationException) and cause.__cause__ is not None:
            cause = cause.__cause__
        is_refusal = isinstance(cause, ValueError | ImportError | re.error | InstantiationException)
        is_refusal |= type(cause).__name__ == "MisconfigurationException"  # not imported here
        is_refusal |= isinstance(cause, TypeError) and _ARGUMENTS.search(str(cause)) is not None
        if isinstance(cause, ConfigError) or not is_refusal:
            raise cause from cause.__cause__
        reason = " ".join(str(cause).partition("\nfull_key")[0].split()) or type(cause).__name__
        where = f"{key}.{str(error).partition('full_key: ')[2].strip()}".rstrip(".")
        raise ConfigError(f"{where}{'.' if _NAMES_ARGUMENT.match(reason) else ': '}{reason}") from None


class Arguments:
    """Keyword arguments of a class or function.

    Attributes:
        own: Arguments that it names itself.
        takes_others: True if it also takes `**others`.
        types: Annotation of each name, Any if it has none. Those of base classes are included if a class passes on `**others`.
    """

    def __init__(self, target: Callable[..., Any]) -> None:
        self.own, self.takes_others = _named(target)
        self.types: dict[str, Any] = {}
        bases = target.__mro__[:-1] if isinstance(target, type) else ()
        for function in [base.__init__ for base in bases if "__init__" in vars(base)] or [target]:
            named, passes_on = _named(function)
            try:
                hints = typing.get_type_hints(function)
            except Exception:  # an annotation names what only type checkers import
                hints = {}
            for name, parameter in named.items():
                kind = hints.get(name, Any)
                self.types.setdefault(name, kind | None if parameter.default is None else kind)
            if not passes_on:
                break
        self.types.pop("self", None)

    def takes(self, name: str) -> bool:
        return self.takes_others or name in self.own

    def check(self, key: str, values: Mapping[str, Any]) -> None:
        """Raise ConfigError for a name that is not accepted, and for a plain value of another type."""
        for name, value in values.items():
            if not self.takes(name):
                raise config_error(f"{key}.{name}", shown(value), f"no such argument; use {', '.join(self.own) or 'none'}")
            if not (isinstance(value, Mapping) and "_target_" in value):
                check_type(f"{key}.{name}", value, self.types.get(name, Any))


arguments_of = functools.cache(Arguments)


def _named(function: Callable[..., Any]) -> tuple[dict[str, Parameter], bool]:
    """Return the keyword arguments by name, and whether the function takes others. A class written in C has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return {}, True
    named = {one.name: one for one in parameters if one.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)}
    return named, any(one.kind is Parameter.VAR_KEYWORD for one in parameters)


def check_type(key: str, value: object, annotation: Any) -> None:
    """Raise ConfigError if a value has none of the plain types in an annotation. A class fits every value, but not text if a
    number is accepted, too."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    is_text = isinstance(value, str) and {int, float} & {*kinds}
    fitting = [kind for kind in kinds if kind is str or get_origin(kind) is Literal] if is_text else kinds
    if not any(_is_of(value, kind) for kind in fitting):
        words = [_in_words(kind) for kind in kinds]
        raise config_error(key, shown(value), f"use {' or '.join(filter(None, words)) or inspect.formatannotation(annotation)}")


def _in_words(kind: Any) -> str | None:
    """Return a plain type in words, None for a class."""
    if get_origin(kind) is Literal:
        return " or ".join(map(shown, get_args(kind)))
    return "a list" if (get_origin(kind) or kind) in (list, tuple, Sequence) else _WORDS.get(kind)


def _is_of(value: object, annotation: Any) -> bool:
    kind = get_origin(annotation) or annotation
    if kind is Literal:
        return value in get_args(annotation)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    if kind in (list, tuple, Sequence):
        return isinstance(value, list | tuple)
    return kind not in _PLAIN or isinstance(value, kind)


def shown(value: object) -> str:
    """Return a value as it is written on a command line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))
