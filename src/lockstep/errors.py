"""What ends a run with one line for a person instead of a stack trace."""


class ConfigError(ValueError):
    """The run cannot start as configured: one line for a person, exit code 2."""


class NamedFailure(RuntimeError):
    """A failure whose one line says everything: no stack trace is shown for it."""


def config_error(key: str, value: object, accepted: str) -> ConfigError:
    """The one line a refusal consists of: the key, its value, and what would be accepted."""
    return ConfigError(f"{key}={value}: {accepted}")
