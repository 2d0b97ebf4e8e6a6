"""Which parameters are trained, where that changes while a model trains."""

from typing import Any

from lightning import Callback, LightningModule, Trainer

from lockstep.callbacks.stepped_rate import is_own_checkpoint


class TrainedParameters(Callback):
    """Saves in each checkpoint, as `frozen` and `unfrozen`, the parameters that became so after training began, and makes them so
    again in a run that goes on. All others are left as that run has them.

    Lightning's BaseFinetuning freezes before each fit, and unfreezes only as an epoch begins (Lightning issue 21901).
    """

    def __init__(self) -> None:
        self._at_first: set[str] | None = None  # that are frozen
        self._frozen: set[str] = set()
        self._unfrozen: set[str] = set()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._at_first, self._frozen, self._unfrozen = None, set(), set()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit" and is_own_checkpoint(trainer):
            self._frozen, self._unfrozen = (set(checkpoint.get(key, ())) for key in ("frozen", "unfrozen"))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._begin(pl_module)  # within an epoch

    def _begin(self, model: LightningModule) -> None:
        """The optimizers are there by now, of the parameters that were trained at first, as when training began. The module's
        `on_train_start` has been called, which may freeze some, and no hook that unfreezes them later."""
        if self._at_first is None:
            self._at_first = (_names_of_frozen(model) | self._unfrozen) - self._frozen
            for names, is_trained in ((self._frozen, False), (self._unfrozen, True)):
                for name in names:
                    model.get_parameter(name).requires_grad_(is_trained)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._at_first is not None:
            now = _names_of_frozen(pl_module)
            checkpoint["frozen"], checkpoint["unfrozen"] = sorted(now - self._at_first), sorted(self._at_first - now)


def _names_of_frozen(model: LightningModule) -> set[str]:
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
