"""LightningDataModules: what data there is, how it is split, and how it comes in batches."""

from lockstep.datamodules.base import DataModule, DataSpec
from lockstep.datamodules.batches import Batch, Batches, InMemory
from lockstep.datamodules.digits import Digits
from lockstep.datamodules.image_folder import ImageFolder
from lockstep.datamodules.random_regression import RandomRegression
from lockstep.datamodules.splits import Splits
from lockstep.datamodules.streams import Shard, sharded
from lockstep.datamodules.synthetic_images import SyntheticImages
from lockstep.datamodules.torchvision_images import TorchvisionImages
