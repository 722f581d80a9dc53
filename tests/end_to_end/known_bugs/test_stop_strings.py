"""Known bugs of stop strings: streamed and plain, across tokens and inside one."""

import pytest

from tests.end_to_end import client
from tests.end_to_end.known_bugs import recipes

pytestmark = [pytest.mark.nats, pytest.mark.model, pytest.mark.timeout(180)]

_STORY = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 48, "ignore_eos": True}
_COUNT = {**_STORY, "prompt": "one two three four five six", "max_tokens": 64}
_RHYME = {**_STORY, "prompt": "The cat sat on the mat. " * 6}
_LIST = {**_STORY, "prompt": "1. red apple\n2. green pear\n3. yellow lemon\n4. blue plum\n"}


async def test_b01_a_streamed_stop_string_shows_no_character(
    roomy: client.Client, decode: recipes.Decode
) -> None:
    known = await recipes.baseline(roomy, decode, _STORY)
    stop = recipes.split_stop(known, num_tokens=3)
    expected = recipes.cut(known.text, stop)

    plain = await roomy.ask({**_STORY, "stop": stop})
    found = await roomy.stream({**_STORY, "stop": stop})

    assert expected == client.text_of(plain) == found.text
    assert ("stop", stop) == (found.ending["finish_reason"], found.ending["stop_reason"])
    ends = [frame["text_offset"] + len(frame["text"]) for frame in found.frames]
    assert max(ends) == len(expected)


@pytest.mark.parametrize("kind", ["never begins", "begins and goes on otherwise"])
async def test_b02_only_what_may_become_a_stop_string_is_held_back(
    roomy: client.Client, decode: recipes.Decode, kind: str
) -> None:
    known = await recipes.baseline(roomy, decode, _STORY)
    stop = "@" * 12 if kind == "never begins" else known.pieces[3] + known.pieces[4] + "@"
    assert stop not in known.text

    found = await roomy.stream({**_STORY, "stop": stop})

    assert known.text == found.text
    assert len(found.frames) > 1
    # The last frame may hold what was held back to the end.
    for frame in found.frames[:-1]:
        num_tokens = frame["index"] + len(frame["token_ids"])
        shown = known.text[: frame["text_offset"] + len(frame["text"])]
        assert recipes.certain(decode(known.token_ids[:num_tokens]), stop) == shown


async def test_b03_the_part_of_a_token_before_a_stop_string_is_kept(
    roomy: client.Client, decode: recipes.Decode
) -> None:
    known = await recipes.baseline(roomy, decode, _STORY)
    token_id, piece = max(
        zip(known.token_ids, known.pieces, strict=True), key=lambda each: len(each[1])
    )
    assert len(piece) >= 4
    request = {**_STORY, **recipes.forced(token_id, 8)}
    stop = next(piece[at : at + 2] for at in range(1, 4) if piece.find(piece[at : at + 2]) == at)

    plain = await roomy.ask({**request, "stop": stop})
    found = await roomy.stream({**request, "stop": stop})

    assert piece[: piece.index(stop)] == client.text_of(plain) == found.text
    assert 1 == len(found.token_ids) == plain["usage"]["num_output_tokens"]


async def test_b05_a_stop_string_of_several_tokens_ends_the_text_before_it(
    roomy: client.Client, decode: recipes.Decode
) -> None:
    known = await recipes.baseline(roomy, decode, _COUNT)
    stop = recipes.split_stop(known, num_tokens=2, first=4)

    answer = await roomy.ask({**_COUNT, "stop": [stop, "@@@"]})

    choice = answer["choices"][0]
    assert recipes.cut(known.text, stop) == choice["text"]
    assert ("stop", stop) == (choice["finish_reason"], choice["stop_reason"])
    # All that was generated counts, also what the cut took from the text.
    num_tokens = len(choice["token_ids"])
    assert stop in decode(choice["token_ids"])
    assert stop not in decode(choice["token_ids"][:-1])
    assert num_tokens == answer["usage"]["num_output_tokens"] < _COUNT["max_tokens"]


async def test_b07_no_stop_string_counts_before_min_tokens(
    roomy: client.Client, decode: recipes.Decode
) -> None:
    request = {**_RHYME, "min_tokens": 20, "max_tokens": 40}
    known = await recipes.baseline(roomy, decode, request)
    stop = next(piece for piece in known.pieces[:5] if piece.strip())
    late = "".join(known.pieces[20:])

    plain = await roomy.ask({**request, "stop": stop})
    found = await roomy.stream({**request, "stop": stop})

    expected = "".join(known.pieces[:20]) + recipes.cut(late, stop)
    assert expected == client.text_of(plain) == found.text
    assert "stop" == plain["choices"][0]["finish_reason"]
    assert plain["usage"]["num_output_tokens"] > 20


async def test_b07_a_stop_string_that_comes_too_early_only_stops_nothing(
    roomy: client.Client, decode: recipes.Decode
) -> None:
    request = {**_STORY, "min_tokens": 20, "max_tokens": 40}
    known = await recipes.baseline(roomy, decode, request)
    stop = "".join(known.pieces[:5])
    assert stop not in "".join(known.pieces[20:])

    answer = await roomy.ask({**request, "stop": stop})

    assert known.text == client.text_of(answer)
    assert "length" == answer["choices"][0]["finish_reason"]


async def test_s216_a_stop_string_that_begins_with_a_newline_drops_none(
    roomy: client.Client, decode: recipes.Decode
) -> None:
    known = await recipes.baseline(roomy, decode, _LIST)
    assert known.text.count("\n") > 1

    plain = await roomy.ask({**_LIST, "stop": "\n@@"})
    found = await roomy.stream({**_LIST, "stop": "\n@@"})

    assert known.text == client.text_of(plain) == found.text


@pytest.mark.parametrize("stop", ["", [""], ["end", ""]])
async def test_s216_an_empty_stop_string_is_refused(roomy: client.Client, stop: object) -> None:
    await recipes.check_refused(roomy, {**_STORY, "stop": stop}, "stop")
