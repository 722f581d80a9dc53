"""A run over time."""

import pytest

from slipstream.shared.measure.load.samples import LoadRun, Sample
from slipstream.shared.measure.load.timeline import timeline

from .load_samples import make_request, make_sample


def test_a_request_waits_until_its_first_token_and_runs_until_its_end() -> None:
    served = make_sample(0.0, 1.2, 2.2, 3.4)
    unanswered = Sample(make_request(), due_s=2.0, sent_s=2.0)
    found = timeline(LoadRun([served, unanswered], 0.0, 4.0), 4)

    assert [0.5, 1.5, 2.5, 3.5] == [each.at_s for each in found]
    assert [1, 0, 1, 1] == [each.num_waiting for each in found]
    assert [0, 1, 1, 0] == [each.num_running for each in found]
    assert [0, 1, 1, 1] == [each.tok_s for each in found]


def test_all_tokens_before_the_end_are_in_a_slice() -> None:
    sample = make_sample(0.0, *(number / 100 for number in range(1, 250)))
    found = timeline(LoadRun([sample], 0.5, 2.0), 7)

    assert pytest.approx(199) == sum(each.tok_s for each in found) * 2.0 / 7
