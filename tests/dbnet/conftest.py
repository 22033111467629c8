"""One thread for torch: the inputs are tiny and the machine is shared."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Run every test with one torch thread and a known seed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)
