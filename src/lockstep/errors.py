"""The exit codes, and what ends a run with one line for a person instead of a stack trace."""

from enum import IntEnum


class ExitCode(IntEnum):
    FINISHED = 0
    FAILED = 1
    REFUSED = 2  # could not start as configured
    NOT_EQUAL = 3  # parity's verdict
    PREEMPTED = 75  # to be resumed; EX_TEMPFAIL of sysexits.h


class ConfigError(ValueError):
    """The run cannot start as configured: one line for a person; exit code 2."""

    def __init__(self, message: str) -> None:
        # torch raises it again for a data worker, after the worker's traceback and the class's name
        said = message.rpartition(f"{type(self).__name__}: ")[2] if message.startswith("Caught ") else message
        super().__init__(" ".join(said.split()))


class NamedFailure(RuntimeError):
    """A failure that its one line describes in full: it is shown without a stack trace."""


def check_at_least(least: float, **values: float | None) -> None:
    """Raise ValueError for the first argument of a constructor that is below `least`, or no number; None is not checked."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise ValueError(f"{name}={value}: is not a number; use at least {least}")  # noqa: TRY004  a refusal is one
        if value is not None and not value >= least:
            raise ValueError(f"{name}={value}: is less than {least}; use at least {least}")


def config_error(key: str, value: object, accepted: str) -> ConfigError:
    """Return the error of a refusal, which has one line: the key, its value, and what would be accepted."""
    return ConfigError(f"{key}={value}: {accepted}")
