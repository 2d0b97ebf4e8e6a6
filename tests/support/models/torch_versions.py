"""Marks for what older torch does not do, whatever the program."""

import pytest
import torch

DIVIDES_MODELS = pytest.mark.skipif(torch.__version__ < "2.7", reason="torch 2.6 divides no model on CPUs")
HAS_1F1B = pytest.mark.skipif(torch.__version__ < "2.8", reason="1F1B over gloo hangs before torch 2.8")
REDUCES_COMPLEX = pytest.mark.skipif(torch.__version__ < "2.7", reason="torch 2.6 reduces no complex numbers over gloo")
