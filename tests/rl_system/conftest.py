import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """As the processes have that tests compare with: the last bits of a sum depend on who adds which part of it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
