"""What a draft's own probability is worth, learned by comparing."""

from slipstream.shared.drafting.confidence import Confidence


def test_a_probability_is_believed_until_it_is_known_better() -> None:
    confidence = Confidence()

    assert 0.02 < confidence.chance(0.05) < 0.2
    assert 0.9 < confidence.chance(0.97) < 1.0


def test_one_that_is_too_sure_of_itself_is_believed_less() -> None:
    confidence = Confidence()
    for idx in range(200):
        confidence.saw(0.95, is_accepted=idx % 2 == 0)

    assert 0.4 < confidence.chance(0.95) < 0.6
    assert confidence.chance(0.2) < 0.3


def test_what_was_wrong_for_long_is_believed_again_soon() -> None:
    """Requests with biases go wrong; those that come after them must not pay for it."""
    confidence = Confidence()
    for _ in range(2000):
        confidence.saw(0.9, is_accepted=False)
    before = confidence.chance(0.9)
    for _ in range(40):
        confidence.saw(0.9, is_accepted=True)

    assert before < 0.01
    assert confidence.chance(0.9) > 0.5


def test_the_outermost_probabilities_have_a_place() -> None:
    confidence = Confidence()
    confidence.saw(0.0, is_accepted=False)
    confidence.saw(1.0, is_accepted=True)

    assert confidence.chance(0.0) < 0.05
    assert confidence.chance(1.0) > 0.95
