"""The arguments that a class or function takes: their names, and the types that their annotations give to plain values."""

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter
from typing import Any, Literal, Union, get_args, get_origin

from lockstep.errors import config_error

_PLAIN = (bool, int, float, str, types.NoneType)
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Arguments:
    """The keyword arguments of a target.

    Attributes:
        own: those that it names itself.
        types: the annotation of each name, Any where there is none. Where a class passes **others on, its bases' too.
        takes_others: True if it passes **others on.
    """

    def __init__(self, target: Callable[..., Any]) -> None:
        parameters = _parameters(target)
        self.own = {name: one for name, one in parameters.items() if one.kind in _NAMED}
        self.takes_others = _passes_on(parameters)
        self.types: dict[str, Any] = {}
        bases = target.__mro__[:-1] if isinstance(target, type) else ()
        for function in [base.__init__ for base in bases if "__init__" in vars(base)] or [target]:
            self.types = _annotations(function) | self.types
            if not _passes_on(_parameters(function)):
                break

    def takes(self, name: str) -> bool:
        return self.takes_others or name in self.own

    def check(self, key: str, values: dict[str, Any]) -> None:
        """Raises ConfigError for a name that is not accepted, and for a value of another type; one with a _target_ is a node, of
        which something is built."""
        for name, value in values.items():
            if not self.takes(name):
                raise config_error(f"{key}.{name}", shown(value), f"no such argument; use {', '.join(self.own) or 'none'}")
            annotation = self.types.get(name, Any)
            if not (isinstance(value, dict) and "_target_" in value) and not fits(value, annotation):
                raise config_error(f"{key}.{name}", shown(value), f"use a value of type {inspect.formatannotation(annotation)}")


arguments_of = functools.cache(Arguments)


def _parameters(function: Callable[..., Any]) -> Mapping[str, Parameter]:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):  # a class written in C has none: it may accept whatever it is given
        return {"others": Parameter("others", Parameter.VAR_KEYWORD)}


def _passes_on(parameters: Mapping[str, Parameter]) -> bool:
    return any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # names that exist for type checkers only
        hints = {}
    named = {name: one for name, one in _parameters(function).items() if one.kind in _NAMED and name != "self"}
    types_of = {name: hints.get(name, Any) for name in named}
    return {name: kind | None if named[name].default is None else kind for name, kind in types_of.items()}


def fits(value: Any, annotation: Any) -> bool:
    """Returns whether a plain value can be what is annotated. A list is accepted for a tuple, an integer for a number, and text
    and mappings for any class that is not plain itself."""
    kind, inner = get_origin(annotation) or annotation, get_args(annotation)
    if kind in (Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if kind is Literal:
        return any(type(value) is type(option) and value == option for option in inner)
    if kind in (Any, object) or not isinstance(kind, type):
        return True
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool) and not math.isnan(value)
    if isinstance(value, list | tuple):
        if kind is tuple and inner and inner[-1] is not Ellipsis:
            return len(value) == len(inner) and all(map(fits, value, inner))
        return (kind is tuple or issubclass(list, kind)) and all(fits(one, inner[0]) for one in value if inner)
    if isinstance(value, str):
        return kind is str or not (kind in _PLAIN or kind is Callable or issubclass(kind, Iterable))
    return isinstance(value, kind) or (isinstance(value, dict) and kind not in _PLAIN and not _is_list(kind))


def _is_list(kind: type) -> bool:
    return issubclass(kind, Iterable) and kind is not str and not issubclass(kind, dict)


def shown(value: object) -> str:
    """Returns a value as it is written on a command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    return str(value)
