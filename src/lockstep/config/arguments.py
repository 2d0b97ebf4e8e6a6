"""The arguments that a class or function accepts: their names, and the types that their annotations give."""

import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Hashable, Iterator
from inspect import Parameter, Signature
from pathlib import PurePath
from typing import Any, Literal, Union, get_args, get_origin

from lockstep.errors import config_error

_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "text", types.NoneType: "null"}
_MANY = {int: "integers", float: "numbers", str: "names"}
_NO_TEXT = re.compile(r"(true|false|null|[-+.\de]*\d[-+.\de]*)?")
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Arguments:
    """The keyword arguments of a target.

    Attributes:
        own: those that it names itself.
        types: the annotation of each name, Any where there is none. Where a class passes **others on, its bases' too.
        takes_others: are others accepted too?
    """

    def __init__(self, target: Callable[..., Any]) -> None:
        signature = _signature(target)
        self.own = {name: parameter for name, parameter in signature.parameters.items() if parameter.kind in _NAMED}
        self.takes_others = _takes_others(signature)
        self.types: dict[str, Any] = {}
        for function in _functions(target):
            for name, annotation in _annotations(function).items():
                self.types.setdefault(name, annotation)

    def takes(self, name: str) -> bool:
        return self.takes_others or name in self.own

    def check(self, key: str, values: dict[str, Any]) -> None:
        """Raises ConfigError for a name that is not accepted, and for a value of another type; one with a _target_ is a node, of
        which something is built."""
        for name, value in values.items():
            if not self.takes(name):
                accepted = f"no such argument; accepted are {', '.join(self.own) or 'none'}"
                raise config_error(f"{key}.{name}", shown(value), accepted)
            annotation = self.types.get(name, Any)
            if not (isinstance(value, dict) and "_target_" in value) and not fits(value, annotation):
                raise config_error(f"{key}.{name}", shown(value), f"accepted is {words(annotation)}")

    def missing(self, given: set[str], positional: int) -> list[str]:
        """Returns the required arguments that are not given by name, nor are among the first `positional` ones."""
        rest = list(self.own.values())[positional:]
        return [one.name for one in rest if one.default is Parameter.empty and one.name not in given]


def arguments_of(target: Callable[..., Any]) -> Arguments:
    return _known_arguments(target) if isinstance(target, Hashable) else Arguments(target)


_known_arguments = functools.cache(Arguments)


def _signature(target: Callable[..., Any]) -> Signature:
    try:
        return inspect.signature(target)
    except (ValueError, TypeError):  # a class written in C has none: it may accept whatever it is given
        return Signature([Parameter("others", Parameter.VAR_KEYWORD)])


def _takes_others(signature: Signature) -> bool:
    return any(parameter.kind is Parameter.VAR_KEYWORD for parameter in signature.parameters.values())


def _functions(target: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yields what receives a call's keyword arguments: a function, or the constructors of a class that pass others on."""
    if not isinstance(target, type):
        yield target
        return
    for base in target.__mro__[:-1]:
        if "__init__" in vars(base):
            yield base.__init__
            if not _takes_others(_signature(base.__init__)):
                return


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # names that exist for type checkers only
        hints = {}
    parameters = _signature(function).parameters
    names = [name for name, parameter in parameters.items() if parameter.kind in _NAMED and name != "self"]
    annotations = {name: hints.get(name, Any) for name in names}
    return {name: hint | None if parameters[name].default is None else hint for name, hint in annotations.items()}


def fits(value: Any, annotation: Any) -> bool:
    """Returns whether a value in a config can be what is annotated. A list is accepted for a tuple, an integer for a number, text
    for any class but a number; objects that are built already are accepted for any class."""
    kind, inner = get_origin(annotation) or annotation, get_args(annotation)
    if kind is Any:
        return True
    if kind in (Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if kind is Literal:
        return any(type(value) is type(option) and value == option for option in inner)
    if kind in (None, types.NoneType) or kind in (bool, str):
        return isinstance(value, kind or types.NoneType)
    if kind in (int, float):
        return not isinstance(value, bool) and isinstance(value, int | kind) and not math.isnan(value)
    if kind is typing.Annotated:
        return fits(value, inner[0])
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return isinstance(value, str | PurePath)
    if isinstance(value, list | tuple) and isinstance(kind, type):
        return _list_fits(value, kind, inner)
    if isinstance(value, dict) and isinstance(kind, type) and inner and issubclass(dict, kind):
        return all(fits(one, inner[-1]) for one in value.values())
    if isinstance(kind, type) and kind is not object and (value is None or isinstance(value, bool | int | float)):
        return isinstance(value, kind)
    return not (_is_list_like(kind) and isinstance(value, str)) and not (kind is Callable and isinstance(value, str))


def _list_fits(value: list[Any] | tuple[Any, ...], kind: type, inner: tuple[Any, ...]) -> bool:
    if kind is tuple and inner and inner[-1] is not Ellipsis:
        return len(value) == len(inner) and all(map(fits, value, inner))
    if kind is tuple or issubclass(list, kind):
        return all(fits(one, inner[0]) for one in value) if inner else True
    return False


def _is_list_like(kind: Any) -> bool:
    return isinstance(kind, type) and kind is not object and issubclass(kind, typing.Iterable) and not issubclass(kind, str)


def words(annotation: Any) -> str:
    """Returns a description of the values that fit an annotation."""
    kind, inner = get_origin(annotation) or annotation, get_args(annotation)
    if kind in (Union, types.UnionType):
        return ", or ".join(dict.fromkeys(words(one) for one in inner))
    if kind is Literal:
        return ", ".join(map(shown, inner))
    if kind is typing.Annotated:
        return words(inner[0])
    if kind is tuple and inner and inner[-1] is not Ellipsis:
        return f"a list of {len(inner)}: {', '.join(map(words, inner))}"
    if _is_list_like(kind) and not issubclass(kind, dict):
        return f"a list of {_MANY[inner[0]]}" if inner and inner[0] in _MANY else "a list"
    return _WORDS.get(annotation) or f"a {getattr(kind, '__name__', kind)}"


def shown(value: object) -> str:
    """Returns a value as it is written on a command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    # text that YAML would read as something else, as ${oc.env:NAME} gives it
    return repr(value) if isinstance(value, str) and _NO_TEXT.fullmatch(value) else str(value)
