"""A request for several choices, plain and streamed: each as if it had been asked for alone."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from slipstream.services.scheduler.choices import choice_id, choice_seed
from slipstream.shared.bus.subjects import RESUME
from slipstream.shared.config import FakeEngineConfig
from slipstream.shared.messages.codec import ClientAnswer, decoder_of, encode
from slipstream.shared.messages.common import Accepted, Failed
from slipstream.shared.messages.generate import Completion, Finished, Resume, TokenFrame

from .service_stack import Client, ServiceStack, until, until_empty

pytestmark = pytest.mark.nats

Start = Callable[..., Awaitable[ServiceStack]]

SAMPLED = {"temperature": 2, "seed": 11, "max_tokens": 24, "ignore_eos": True}


async def until_forgotten(stack: ServiceStack) -> None:
    """Return when nothing of any group is left."""
    await until_empty(stack)
    choices = stack.one("scheduler")._front._choices
    await until(lambda: not (choices._followed or choices._by_choice))


async def test_b40_choices_are_those_of_requests_with_their_seeds(
    start: Start, client: Client
) -> None:
    stack = await start()
    answer, again = [await client.ask("Hello", n=4, **SAMPLED) for _ in range(2)]

    assert isinstance(answer, Completion)
    assert isinstance(again, Completion)
    assert [0, 1, 2, 3] == [choice.index for choice in answer.choices]
    texts = [choice.text for choice in answer.choices]
    assert 4 == len(set(texts))
    assert texts == [choice.text for choice in again.choices]
    for choice in answer.choices:
        alone = await client.ask("Hello", **{**SAMPLED, "seed": choice.seed})
        assert isinstance(alone, Completion)
        assert choice.text == alone.choices[0].text
        assert choice.token_ids == alone.choices[0].token_ids
    assert 11 == answer.seed == answer.choices[0].seed
    assert 4 * 24 == answer.usage.num_output_tokens
    await until_forgotten(stack)


async def test_b40_greedy_choices_are_one_and_the_same(start: Start, client: Client) -> None:
    await start()
    answer = await client.ask("Hello", n=2, max_tokens=8)

    assert isinstance(answer, Completion)
    assert 1 == len({choice.text for choice in answer.choices})


async def test_b40_streamed_choices_are_the_plain_ones(start: Start, client: Client) -> None:
    stack = await start()
    plain = await client.ask("Hello", n=3, **SAMPLED)
    inbox, texts, tokens = client.bus.new_inbox(), ["", "", ""], [[], [], []]
    accepted: list[Accepted] = []
    endings: dict[int, Finished] = {}

    async def take(incoming: object) -> None:
        match decoder_of(ClientAnswer).decode(incoming.payload):  # type: ignore[attr-defined]
            case Accepted() as message:
                accepted.append(message)
            case TokenFrame() as frame:
                assert choice_id(accepted[0].request_id, frame.choice) == frame.request_id
                texts[frame.choice] += frame.text
                tokens[frame.choice] += frame.token_ids
            case Finished() as ending:
                assert ending.choice not in endings
                endings[ending.choice] = ending

    subscription = await client.bus.subscribe(inbox, take)
    await client.stream_to(inbox, "Hello", n=3, **SAMPLED)
    await until(lambda: len(endings) == 3)
    await subscription.stop()

    assert isinstance(plain, Completion)
    assert [choice.text for choice in plain.choices] == texts
    assert [list(choice.token_ids) for choice in plain.choices] == tokens
    assert [choice_seed(11, choice) for choice in range(3)] == [
        endings[choice].seed for choice in range(3)
    ]
    await until_forgotten(stack)


async def test_a_choice_is_resumed_by_its_number(start: Start, client: Client) -> None:
    stack = await start(every={"fake": FakeEngineConfig(step_ms=5.0)})
    inbox, again = client.bus.new_inbox(), client.bus.new_inbox()
    heard: list[object] = []
    resumed: list[object] = []

    async def take(incoming: object) -> None:
        heard.append(decoder_of(ClientAnswer).decode(incoming.payload))  # type: ignore[attr-defined]

    async def take_again(incoming: object) -> None:
        resumed.append(decoder_of(ClientAnswer).decode(incoming.payload))  # type: ignore[attr-defined]

    subscriptions = [
        await client.bus.subscribe(inbox, take),
        await client.bus.subscribe(again, take_again),
    ]
    await client.stream_to(inbox, "Hello", n=2, **SAMPLED)
    frames_of_1 = lambda found: [  # noqa: E731 - a filter, named for its two uses
        each for each in found if isinstance(each, TokenFrame) and each.choice == 1
    ]
    await until(lambda: frames_of_1(heard))
    request_id = next(each for each in heard if isinstance(each, Accepted)).request_id
    message = Resume(request_id=request_id, reply=again, choice=1)
    await client.bus.publish(
        RESUME.subject(request_id=request_id), encode(message, "json"), reply=again
    )
    await until(lambda: frames_of_1(resumed))

    assert 0 == frames_of_1(resumed)[0].index
    await until_forgotten(stack)
    for subscription in subscriptions:
        await subscription.stop()


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_cancel_ends_all_choices(start: Start, client: Client, is_streamed: bool) -> None:
    stack = await start(every={"fake": FakeEngineConfig(step_ms=10.0)})
    long = {**SAMPLED, "max_tokens": 2000, "n": 3}
    inbox = client.bus.new_inbox()
    heard: list[object] = []

    async def take(incoming: object) -> None:
        heard.append(decoder_of(ClientAnswer).decode(incoming.payload))  # type: ignore[attr-defined]

    subscription = await client.bus.subscribe(inbox, take)
    await client.stream_to(inbox, "Hello", stream=is_streamed, **long)
    await until(lambda: len(stack.desk.records) == 3)
    request_id = next(iter(stack.one("scheduler")._front._choices._followed))
    await until(lambda: all(each.phase == "decoding" for each in stack.desk.records.values()))
    cancelled = await client.cancel(request_id)

    assert "decoding" == cancelled.phase
    num_endings = 3 if is_streamed else 1
    ended = (Finished, Failed, Completion)
    await until(lambda: num_endings == sum(isinstance(each, ended) for each in heard))
    await until_forgotten(stack)
    await asyncio.sleep(0.05)
    assert num_endings == sum(isinstance(each, ended) for each in heard)
    await subscription.stop()


async def test_b81_choices_count_as_so_many_requests(start: Start, client: Client) -> None:
    stack = await start(scheduler={"max_num_waiting": 3})
    answer = await client.ask("Hello", n=4, max_tokens=2)

    assert isinstance(answer, Failed)
    assert "overloaded" == answer.code
    assert answer.retry_after_ms is not None
    assert isinstance(await client.ask("Hello", n=3, max_tokens=2), Completion)
    await until_forgotten(stack)


@pytest.mark.slow
async def test_choices_that_can_never_fit_are_refused_once(start: Start, client: Client) -> None:
    stack = await start(kv={"num_blocks": 4})
    answer = await client.ask("Hello", n=3, max_tokens=1000)

    assert isinstance(answer, Failed)
    assert "kv_too_large" == answer.code
    await until_forgotten(stack)


async def test_choices_outlive_a_killed_decode_worker(start: Start, client: Client) -> None:
    stack = await start(every={"fake": FakeEngineConfig(step_ms=5.0)})
    expected = await client.ask("Hello", n=3, **SAMPLED)
    asking = asyncio.create_task(client.ask("Hello", n=3, **SAMPLED))
    await until(lambda: len(stack.desk.records) == 3)
    await until(lambda: all(each.phase == "decoding" for each in stack.desk.records.values()))
    await stack.kill(*stack.living("decode"))
    await stack.add("decode")
    answer = await asking

    assert isinstance(expected, Completion)
    assert isinstance(answer, Completion), answer
    assert [each.text for each in expected.choices] == [each.text for each in answer.choices]
    assert answer.attempt > 1
    await until_forgotten(stack)
