"""Plain nn.Modules: they import torch, nothing of Lightning, nothing of torch.distributed.

`build` passes `input_shape` and `num_outputs` to every constructor that takes them.
"""

from lockstep.nets.cnn import CNN
from lockstep.nets.mlp import MLP
from lockstep.noise import Dropout
