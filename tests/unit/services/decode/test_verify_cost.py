"""What a draft token adds to a step is told apart from what streams and contexts add."""

import random

import pytest

from slipstream.services.decode.verify_cost import Shape, VerifyCost


def machine_s(shape: Shape, *, draft_s: float, base_s: float = 3e-3) -> float:
    context_s = 1e-6 * shape.num_context_tokens
    return base_s + 0.3e-3 * shape.num_streams + draft_s * shape.num_drafts + context_s


@pytest.mark.parametrize("draft_s", [0.05e-3, 0.3e-3, 2e-3])
def test_the_cost_of_a_draft_token_is_found_in_noise(draft_s: float) -> None:
    rng, cost = random.Random(1), VerifyCost()
    context = 500
    for _ in range(300):
        context += 4
        shape = Shape(1, rng.choice([0, 0, 1, 3, 6]), context)
        cost.saw(shape, machine_s(shape, draft_s=draft_s) * rng.uniform(0.9, 1.1))

    assert cost.of_draft == pytest.approx(draft_s, rel=0.25, abs=0.03e-3)
    plain = Shape(1, 0, context)
    assert cost.of_step(plain) == pytest.approx(machine_s(plain, draft_s=draft_s), rel=0.1)


def test_streams_that_join_are_not_taken_for_drafts() -> None:
    rng, cost = random.Random(2), VerifyCost()
    for step in range(400):
        num_streams = 1 + step % 16
        shape = Shape(num_streams, rng.choice([0, 1, 4]), 400 * num_streams)
        cost.saw(shape, machine_s(shape, draft_s=0.1e-3) * rng.uniform(0.95, 1.05))

    assert cost.of_draft == pytest.approx(0.1e-3, rel=0.5)


def test_a_machine_that_becomes_slower_is_followed() -> None:
    rng, cost = random.Random(3), VerifyCost()
    for slow in (1, 3):
        for _ in range(600):
            shape = Shape(2, rng.choice([0, 2, 5]), 1000)
            cost.saw(shape, slow * machine_s(shape, draft_s=0.2e-3))

    assert cost.of_draft == pytest.approx(0.6e-3, rel=0.2)


def test_a_stall_teaches_next_to_nothing() -> None:
    cost = VerifyCost()
    shape = Shape(1, 0, 500)
    for _ in range(50):
        cost.saw(shape, 5e-3)
    cost.saw(shape, 2.0)

    assert cost.of_step(shape) < 8e-3


def test_nothing_is_free_whatever_was_seen() -> None:
    cost = VerifyCost()
    for num_drafts in (0, 8, 0, 8) * 50:
        cost.saw(Shape(1, num_drafts, 0), 5e-3 - 0.1e-3 * num_drafts)

    assert cost.of_draft > 0
