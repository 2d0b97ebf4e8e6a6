"""What the arguments of a model, its optimizer and its schedule accept, and what does not go together."""

from omegaconf import DictConfig, OmegaConf

from lockstep.config.plan import Plan
from lockstep.config.rules import TEXT, YES_NO, Rule, above, groups, integer, number, one_of, some
from lockstep.errors import config_error

OPTIMIZER = {"lr": number(0), "weight_decay": number(0), "momentum": number(0, 1), "fused": YES_NO}
SCHEDULE = {
    **dict.fromkeys(("frequency", "step_size"), integer(1)),
    **dict.fromkeys(("warmup_steps", "warmup_epochs", "patience"), integer(0)),
    **dict.fromkeys(("div_factor", "final_div_factor"), above(0)),
    **dict.fromkeys(("gamma", "min_factor"), number(0)),
    "decay": Rule("accepted is a part of training, above 0 and up to 1", lambda part: above(0).test(part) and part <= 1),
    "interval": one_of("step", "epoch"),
    "monitor": TEXT.or_null(),
    "pct_start": number(0, 1),
}

RULES = {
    "*": {
        **dict.fromkeys(("compile", "channels_last"), YES_NO),
        "metrics": some("names", TEXT),
        "torchmetrics": groups("accepted is {NAME: {_target_: torchmetrics....}}, or null", "_target_"),
        "param_groups": groups("accepted is {NAME: {match: PART OF A PARAMETER'S NAME, OPTION: VALUE}}, or null", "match"),
        "compile_mode": one_of("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        "label_smoothing": number(0, 1),
        **{f"optimizer.{name}": rule for name, rule in OPTIMIZER.items()},
        **{f"lr_scheduler.{name}": rule for name, rule in SCHEDULE.items()},
    },
}


def _check_model(cfg: DictConfig, key: str, plan: Plan) -> None:
    search = OmegaConf.select(cfg, f"{key}.optimizer.line_search_fn")
    if plan.world_size > 1 and search is not None:
        why = "each process would ask for the loss a number of times of its own; accepted is trainer.devices=1, or null"
        raise config_error(f"{key}.optimizer.line_search_fn", search, why)
    mode, accumulated = OmegaConf.select(cfg, f"{key}.compile_mode"), plan.accumulate_grad_batches
    if plan.accelerator == "gpu" and accumulated > 1 and cfg.model.get("compile") and mode in ("reduce-overhead", "max-autotune"):
        why = f"writes over the gradients to which trainer.accumulate_grad_batches={accumulated} adds (pytorch issue 169545)"
        raise config_error(f"{key}.compile_mode", mode, f"{why}; accepted is default, or max-autotune-no-cudagraphs")


CHECKS = {"*": _check_model}
