"""Small language models, and texts for them."""

from pathlib import Path

TINY = ("model=gpt_nano", "model.net.width=16", "model.net.heads=2", "model.net.depth=2")
TINY += ("optimized_metric=val/loss", "optimized_mode=min")


def texts(folder: Path) -> tuple[str, ...]:
    """Options for documents of many lengths in windows of 16 places, of which the last of a split has few targets."""
    (folder / "texts").mkdir()
    for number in range(16):
        (folder / "texts" / f"{number}.txt").write_bytes(bytes(range(65 + number, 75 + 3 * number)))
    split = ("datamodule.val_fraction=0.2", "datamodule.test_fraction=0.2", "datamodule.context=16")
    return ("datamodule=text", f"datamodule.paths=[{folder}/texts]", f"datamodule.cache_dir={folder}/tokens", *split)
