"""What all tests of the native kernels share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def _twins_in_one_thread() -> Iterator[None]:
    """Threads that a sanitizer watches are those of the kernels: it does not know torch's."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
