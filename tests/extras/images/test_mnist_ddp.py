"""The DDP guides' first program."""

from collections.abc import Callable

from omegaconf import DictConfig


def test_the_program_is_that_of_the_guides(compose: Callable[..., DictConfig]) -> None:
    cfg = compose("experiment=mnist_ddp")
    assert cfg.model.optimizer._target_ == "torch.optim.Adam"
    assert (cfg.model.net.hidden, cfg.model.optimizer.lr) == ([256], 1e-3)
    assert (cfg.datamodule.batch_size, cfg.trainer.max_epochs) == (64, 2)
