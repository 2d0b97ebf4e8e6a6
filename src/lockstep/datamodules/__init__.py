"""LightningDataModules: data sets, their splits and their batches."""

from lockstep.datamodules.base import DataModule, DataSpec, Splits
from lockstep.datamodules.batches import Batches
from lockstep.datamodules.digits import Digits
