"""Which hooks of a callback that looks could end a run."""

from lightning import Callback


def unwatched(kind: type) -> list[str]:
    names = [name for name in dir(Callback) if name.startswith("on_") or name in ("setup", "teardown", "state_dict")]
    own = [name for name in names if getattr(kind, name) is not getattr(Callback, name)]
    assert own
    return [name for name in own if not hasattr(getattr(kind, name), "is_watched")]
