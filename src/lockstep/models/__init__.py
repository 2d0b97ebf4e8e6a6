"""LightningModules, one per task: what the loss and the metrics are. The net inside comes from config."""

from lockstep.models.classifier import Classifier
from lockstep.models.regressor import Regressor
from lockstep.models.supervised import Supervised
