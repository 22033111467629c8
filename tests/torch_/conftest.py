"""Torch on one thread: the tests share few cores, and small tensors gain nothing from more."""

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
