"""A plugin of pytest, for benchmarks/lightning_parity.py: writes down what Lightning's test has measured and asked for."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

_RECORD = Path(os.environ["LOCKSTEP_PARITY"])


@pytest.fixture(autouse=True)
def _record(request: pytest.FixtureRequest) -> Any:
    module, given, measured = request.module, request.node.callspec.params, []
    measure = module.measure_loops

    def recorded(*arguments: Any, **options: Any) -> dict[str, Any]:
        measured.append(measure(*arguments, **options))
        return measured[-1]

    module.measure_loops = recorded
    if not torch.cuda.is_available():
        module.assert_parity_relative = lambda *_, **__: None  # of a GPU's memory
    yield
    trainer, plain = measured
    trained, bare = ([seconds / given["num_epochs"] for seconds in one["durations"][1:]] for one in measured)
    content = {
        "trainer": trained,
        "plain": bare,
        "more": float(np.mean(trained) - np.mean(bare)),
        "threshold": given["max_diff_speed"],
        "equal": bool(np.allclose(trainer["losses"], plain["losses"], rtol=0, atol=1.5e-5)),  # numpy's five places
    }
    _RECORD.write_text(json.dumps(content))
