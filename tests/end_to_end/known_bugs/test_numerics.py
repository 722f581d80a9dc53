"""Known bugs of numerics: a row's result must not depend on other rows."""

import pytest

from tests.end_to_end import client
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(180)]

_LONG_S = 150.0
_NUM_PROMPTS = 20


def _requests(num_tokens: int) -> list[recipes.Request]:
    return [
        {
            "prompt": f"Fact {number}: " + "the river runs to the sea, " * (number % 7),
            "temperature": 0,
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "logprobs": 1,
        }
        for number in range(_NUM_PROMPTS)
    ]


async def _check_alone_is_together(asking: client.Client, num_tokens: int) -> None:
    requests = _requests(num_tokens)
    alone = await recipes.alone(asking, requests)

    together = await recipes.together(asking, requests, _LONG_S)

    assert [each["choices"] for each in alone] == [each["choices"] for each in together]
    assert {num_tokens} == {len(client.token_ids_of(each)) for each in alone}


async def test_b98_twenty_in_one_batch_say_what_each_says_alone_in_int8(
    roomy: client.Client,
) -> None:
    await _check_alone_is_together(roomy, 32)


async def test_b98_and_in_float32(float32: client.Client) -> None:
    await _check_alone_is_together(float32, 6)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["roomy", "float32"])
async def test_b98_as_long_as_reported(name: str, request: pytest.FixtureRequest) -> None:
    await _check_alone_is_together(request.getfixturevalue(name), 64)


@pytest.mark.parametrize("route", ["local", "remote"])
async def test_b100_a_nan_ends_one_request_and_touches_no_other(
    spoiled: client.Client, route: str
) -> None:
    healthy = {"temperature": 0, "max_tokens": 60, "ignore_eos": True, "logprobs": 1}
    neighbour = {**healthy, "prompt": "the river runs to the sea", "route": route}
    sick = {**healthy, "prompt": "something is wrong!", "route": route}
    (alone,) = await recipes.alone(spoiled, [neighbour])

    answers = await recipes.together(spoiled, [neighbour, sick, neighbour], _LONG_S)

    assert [alone["choices"]] * 2 == [answers[0]["choices"], answers[2]["choices"]]
    assert ("failed", "non_finite_logits") == (answers[1]["type"], answers[1]["code"])
