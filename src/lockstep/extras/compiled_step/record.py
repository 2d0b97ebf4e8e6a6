"""What the record of a run says of its steps' graph."""

from typing import Any

from lightning import Callback, LightningModule, Trainer

import lockstep.extras.compiled_step.compiler  # noqa: F401  an import server imports what a run's config names, this module say


class GraphRecord(Callback):
    """Adds whether steps were compiled, `compiled_step`, and why not, or not to the end, `not_compiled`. Being one of the guards,
    it also makes a run with compiled steps another job of a sweep than one without: its bits and its speed are others."""

    _graph: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._graph = getattr(trainer.fit_loop.epoch_loop, "graph", None)

    def facts(self) -> dict[str, Any]:
        if self._graph is None:
            return {}
        why = self._graph.why_not
        return {"compiled_step": self._graph.has_begun and why is None, "not_compiled": why or self._graph.why_no_more}
