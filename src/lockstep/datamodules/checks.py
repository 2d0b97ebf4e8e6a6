"""What the arguments of a datamodule accept, and what does not go together."""

from omegaconf import DictConfig, OmegaConf

from lockstep.config.arguments import shown
from lockstep.config.plan import Plan
from lockstep.config.rules import SEED, TEXT, YES_NO, Rule, integer, number, one_of
from lockstep.errors import config_error

SWITCHES = ("drop_last", "shuffle", "pin_memory", "standardize")
AUGMENT = {"crop": integer(0), "flip": YES_NO, "padding": one_of("zeros", "reflect")}

RULES = {
    "*": {
        **dict.fromkeys(SWITCHES, YES_NO),
        "persistent_workers": YES_NO.or_null(),
        "batch_size": integer(1),
        "global_batch_size": integer(1).or_null(),
        "num_workers": integer(0).or_null(),
        "val_fraction": number(0, 0.9),
        "test_fraction": number(0, 0.9),
        "folds": integer(2).or_null(),
        "fold": integer(0),
        "seed": SEED,
        "dataset": TEXT,
        "data_dir": TEXT,
        "augment": Rule(
            "accepted is {crop: PIXELS, flip: true|false, padding: zeros|reflect}, or null",
            lambda v: v is None or OmegaConf.is_dict(v),
        ),
        **{f"augment.{name}": rule for name, rule in AUGMENT.items()},
    },
    "plain": {  # as torch's DataLoader takes them
        **dict.fromkeys(("batch_size", "global_batch_size"), integer(1).or_null()),
        "num_workers": integer(0).or_null(),
    },
}


def _check_datamodule(cfg: DictConfig, key: str, _plan: Plan) -> None:
    data = cfg.datamodule
    for name, value in (data.get("augment") or {}).items():
        if name not in AUGMENT:
            raise config_error(f"{key}.augment.{name}", shown(value), f"no such key; accepted are {', '.join(AUGMENT)}")
    if data.get("persistent_workers") and data.num_workers == 0:
        raise config_error(f"{key}.persistent_workers", "true", "needs datamodule.num_workers of at least 1")
    folds, fold = data.get("folds"), data.get("fold")
    if folds is None and fold:
        raise config_error(f"{key}.fold", fold, "needs datamodule.folds; accepted without it is 0")
    if folds is not None and fold >= folds:
        raise config_error(f"{key}.fold", fold, f"accepted is 0 to {folds - 1}, for datamodule.folds={folds}")


CHECKS = {"*": _check_datamodule}
