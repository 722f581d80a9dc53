"""Lookup within the decode worker: what is verified, and what is learned without verifying."""

import string

from slipstream.services.decode.batch import Part
from slipstream.services.decode.draft_policy import DraftPolicy
from slipstream.services.decode.local_drafts import LocalDrafts
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.model.sampling import SampledToken

from .decode_samples import make_sequence, say

STEP_S, TOKEN_S = 3e-3, 0.1e-3
CHEAP, DEAR = 1, 100  # times what a draft token costs


def decoding(prompt: str, **fields: int) -> DecodeSequence:
    sequence = make_sequence([ord(letter) for letter in prompt], max_tokens=900, **fields)
    say(sequence, prompt[:2])
    sequence.num_computed_tokens = len(sequence.token_ids) - 1
    return sequence


def part_of(sequence: DecodeSequence, draft: list[int], sampled: str) -> Part:
    token_ids = [*sequence.token_ids, *draft]
    rows = SequenceRows(token_ids, len(sequence.token_ids) - 1, 1 + len(draft), [1], 1 + len(draft))
    tokens = [SampledToken(ord(letter)) for letter in sampled]
    return Part(sequence, rows, draft, tokens, is_stream=True)


async def stepped(drafts: LocalDrafts, sequence: DecodeSequence, says: str, cost: int) -> list[int]:
    """Step once: verify what is proposed against `says`; return what was verified."""
    proposals = await drafts.propose([sequence])
    draft = list(proposals.get(sequence.attempt, ()))
    says += "~" * len(draft)
    fitting = 0
    while fitting < len(draft) and draft[fitting] == ord(says[fitting]):
        fitting += 1
    part = part_of(sequence, draft, says[: fitting + 1])
    if draft:
        sequence.drafts.count(len(draft), fitting)
    say(sequence, says[: fitting + 1])
    sequence.num_computed_tokens = len(sequence.token_ids) - 1
    drafts.stepped([part], STEP_S + cost * TOKEN_S * len(draft))
    return draft


async def opened(
    prompt: str, max_num_tokens: int = 8, **fields: int
) -> tuple[LocalDrafts, DecodeSequence]:
    drafts, sequence = LocalDrafts(DraftPolicy(max_num_tokens)), decoding(prompt, **fields)
    await drafts.open(sequence)
    return drafts, sequence


async def test_what_followed_last_time_is_proposed() -> None:
    drafts, sequence = await opened("abcdefgh")

    assert "cd" == "".join(map(chr, (await drafts.propose([sequence]))[sequence.attempt]))[:2]


async def test_a_copied_text_is_verified_further_and_further() -> None:
    text = string.ascii_letters + string.digits
    drafts, sequence = await opened(text)
    at, lengths = 2, []
    while at + 10 < len(text):
        before = len(sequence.token_ids)
        lengths.append(len(await stepped(drafts, sequence, text[at:], CHEAP)))
        at += len(sequence.token_ids) - before

    assert lengths[0] < 8 == lengths[-1]
    assert sequence.drafts.num_tested == sequence.drafts.num_accepted


async def test_what_is_never_accepted_is_no_longer_verified_and_comes_back() -> None:
    drafts, sequence = await opened("ab" * 30)
    for wrong in (string.ascii_uppercase + string.digits) * 2:
        await stepped(drafts, sequence, wrong, DEAR)
        say(sequence, "ab")
        sequence.num_computed_tokens = len(sequence.token_ids) - 1
    num_drafted, num_unused = sequence.drafts.num_drafted, sequence.drafts.num_steps_unused

    assert num_unused > 20
    for _ in range(300):
        await stepped(drafts, sequence, "abababababababab", CHEAP)
    assert sequence.drafts.num_drafted > num_drafted + 100, "by then they are right, and cheap"


async def test_a_guess_that_is_not_verified_counts_all_the_same() -> None:
    drafts, sequence = await opened("ab" * 30)
    await drafts.propose([sequence])
    drafts._policy.tested(sequence, 50, 0)
    before = sequence.drafts.acceptances
    assert before is not None
    low = before.rate
    for place in range(3):
        await stepped(drafts, sequence, ("ab" * 8)[place % 2 :], DEAR)

    assert before.rate > low + 0.05
    assert 0 == sequence.drafts.num_drafted


async def test_a_long_prompt_is_indexed_in_parts() -> None:
    drafts, sequence = await opened("ab" + "x" * 700)

    assert {} == await drafts.propose([sequence])
    assert await drafts.propose([sequence])


async def test_who_wants_none_and_who_has_left_gets_none() -> None:
    drafts, sequence = await opened("abcdefgh", num_speculative_tokens=0)
    assert {} == await drafts.propose([sequence])
    drafts, sequence = await opened("abcdefgh")
    await drafts.close(sequence)

    assert {} == await drafts.propose([sequence])
    assert not drafts._indexes


async def test_prompts_that_are_not_computed_yet_are_passed_over() -> None:
    drafts, sequence = await opened("abcdefgh")
    sequence.num_computed_tokens = 0

    assert {} == await drafts.propose([sequence])


async def test_a_request_that_says_how_many_gets_so_many_paying_or_not() -> None:
    drafts, sequence = await opened("abcdefgh", num_speculative_tokens=3)
    await drafts.propose([sequence])
    drafts._policy.tested(sequence, 50, 0)
    for _ in range(5):
        assert 3 == len(await stepped(drafts, sequence, "xyz", DEAR))
        say(sequence, "ab")
        sequence.num_computed_tokens = len(sequence.token_ids) - 1
