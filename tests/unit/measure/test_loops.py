"""Outputs that go round in circles."""

import pytest

from slipstream.shared.measure.loops import is_looping

_RUN = [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([], False),
        (_RUN, False),
        (_RUN * 2, False),
        (_RUN * 3, True),
        ([*_RUN, 9, *_RUN, 9, 9, *_RUN], True),
        ([*_RUN, 9, *_RUN, 9, 9, *_RUN[:7]], False),
        ([7] * 9, False),
        ([7] * 10, True),
        (list(range(500)), False),
    ],
)
def test_a_run_of_eight_that_comes_three_times_is_a_loop(
    token_ids: list[int], *, expected: bool
) -> None:
    assert expected == is_looping(token_ids)
