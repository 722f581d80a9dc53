"""Known bugs of parameter values: out of range, at the edge, unknown."""

import asyncio
from typing import Any

import pytest

from tests.end_to_end import client, stack
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(180)]

_VOCABULARY = 49_152
_GREEDY = {"prompt": "Rivers are", "temperature": 0, "max_tokens": 16, "ignore_eos": True}
_SEEDED = {**_GREEDY, "temperature": 0.9, "seed": 11, "top_p": 1, "top_k": 0}


@pytest.mark.parametrize(
    "bias",
    [
        {"999999": 5},
        {str(_VOCABULARY): 5},
        {"-1": 5},
        {"abc": 1},
        {"5": 1000},
        {"5": -1000},
        {"5": "x"},
        [5],
    ],
    ids=str,
)
async def test_b26_a_bias_that_cannot_be_is_refused(roomy: client.Client, bias: object) -> None:
    failed = await roomy.ask({**_GREEDY, "logit_bias": bias})

    assert ("failed", "invalid_request") == (failed["type"], failed.get("code")), failed
    assert failed["field"].startswith("logit_bias")


async def test_b26_a_bias_bans_or_forces_a_token_of_its_own_request_only(
    roomy: client.Client,
) -> None:
    (plain,) = await recipes.alone(roomy, [_GREEDY])
    first = client.token_ids_of(plain)[0]
    another = (first + 1) % 1000 + 1000

    answers = await recipes.together(
        roomy,
        [
            _GREEDY,
            {**_GREEDY, "logit_bias": {str(first): -100}},
            {**_GREEDY, **recipes.forced(another, 16)},
            _GREEDY,
        ],
    )

    tokens = [client.token_ids_of(answer) for answer in answers]
    assert client.token_ids_of(plain) == tokens[0] == tokens[3]
    assert first not in tokens[1]
    assert [another] * 16 == tokens[2]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 1e6),
        ("temperature", -1),
        ("temperature", "NaN"),
        ("top_p", -1),
        ("top_p", 1.5),
        ("repetition_penalty", 0),
        ("min_p", 2),
        ("min_p", -0.1),
        ("top_k", -5),
        ("top_k", 1.5),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("seed", 2**70),
        ("max_tokens", "12"),
    ],
)
async def test_b27_a_value_out_of_range_is_refused_by_name(
    roomy: client.Client, field: str, value: object
) -> None:
    await recipes.check_refused(roomy, {**_GREEDY, field: value}, field)


async def test_b27_edge_values_pass_and_do_nothing(roomy: client.Client) -> None:
    edges: list[dict[str, Any]] = [
        {"top_p": 1},
        {"top_k": 0},
        {"top_k": -1},
        {"min_p": 0},
        {"repetition_penalty": 1},
        {"presence_penalty": 0},
        {"frequency_penalty": 0},
    ]

    answers = await recipes.together(roomy, [_SEEDED, *({**_SEEDED, **edge} for edge in edges)])

    assert [recipes.said(answers)[0]] * len(answers) == recipes.said(answers)


async def test_b31_tiny_temperatures_are_greedy(roomy: client.Client) -> None:
    temperatures = [0, 1e-12, 1e-6, 1e-5, 1e-4, 1e-3]

    answers = await recipes.together(
        roomy, [{**_GREEDY, "temperature": each, "seed": 3} for each in temperatures]
    )

    assert [recipes.said(answers)[0]] * len(answers) == recipes.said(answers)


async def test_b32_values_that_leave_one_candidate_give_the_greedy_text(
    roomy: client.Client,
) -> None:
    edges: list[dict[str, Any]] = [{"top_k": 1}, {"min_p": 1}, {"top_p": 1e-9}, {"top_p": 0}]

    greedy, *answers = await recipes.together(
        roomy, [_GREEDY, *({**_SEEDED, **edge} for edge in edges)]
    )

    assert [recipes.said([greedy])[0]] * len(edges) == recipes.said(answers)


async def test_b32_values_that_mean_off_change_nothing(roomy: client.Client) -> None:
    edges: list[dict[str, Any]] = [
        {"top_p": 1.0},
        {"top_k": -1},
        {"top_k": 0},
        {"top_k": _VOCABULARY + 1},
        {"min_p": 0.0},
    ]

    answers = await recipes.together(roomy, [_SEEDED, *({**_SEEDED, **edge} for edge in edges)])

    assert [recipes.said(answers)[0]] * len(answers) == recipes.said(answers)


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_b108_an_unknown_field_is_ignored_and_warned_about_once(
    roomy: client.Client, roomy_stack: stack.Stack, encoding: client.Encoding
) -> None:
    typo = f"temprature_{encoding}"
    plain = await roomy.ask(_GREEDY)

    for _ in range(3):
        extended = await roomy.ask({**_GREEDY, typo: 0.1, "foo": [1]}, encoding=encoding)
        assert recipes.said([plain]) == recipes.said([extended])

    def warnings() -> list[stack.LogLine]:
        return [line for line in roomy_stack.log if line.get("field") == typo]

    assert await asyncio.to_thread(stack.wait_until, lambda: bool(warnings()), 20)
    assert ["unknown_field_ignored"] == [line["event"] for line in warnings()]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "get_time"}}]),
        ("tool_choice", "required"),
        ("adapter", "poet"),
        ("speculation", "medusa"),
        ("speculation_mode", "typical"),
    ],
)
async def test_b108_known_fields_that_cannot_be_honoured_are_refused(
    roomy: client.Client, field: str, value: object
) -> None:
    await recipes.check_refused(roomy, {**_GREEDY, field: value}, field)
