"""What `datamodule=image_folder` loads pictures with, decoded as they are needed or from the cache."""

from lightning.pytorch.utilities.combined_loader import _shutdown_workers_and_reset_iterator
from loading import Loading

from lockstep.extras.image_cache.image_cache import CachedImageFolder
from lockstep.extras.images.image_folder import ImageFolder


def main() -> None:
    task = Loading.given()
    kind, cache = (ImageFolder, {}) if task.cache is None else (CachedImageFolder, {"cache_dir": task.cache})
    datamodule = kind(
        str(task.folder),
        size=task.size,
        batch_size=task.batch_size,
        num_workers=task.workers,
        val_fraction=0.0,
        test_fraction=0.0,
        drop_last=False,
        **cache,
    )
    datamodule.prepare_data()
    loader = datamodule.train_dataloader()
    task.measure(lambda: (len(inputs) for inputs, _ in loader), lambda: _shutdown_workers_and_reset_iterator(loader))


if __name__ == "__main__":
    main()
