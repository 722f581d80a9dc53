"""A draft model's KV follows the target's tokens: its runner compares every slot that it reads."""

from collections.abc import Sequence

import numpy as np

from slipstream.shared.drafting.engine import Draft, DraftEngine, Want
from slipstream.shared.drafting.sequence import DraftSequence
from slipstream.shared.kv.layout import BLOCK_SIZE, KvLayout
from slipstream.shared.messages.draft import DraftSampling
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model.fake_runner import VOCAB_SIZE, FakeRunner, logits_after, next_token_id
from slipstream.shared.model.fake_runner import hash_prefix as hash_of
from slipstream.shared.model.sampling import Sampler

PROMPT = list(b"a prompt of some length")
MAX_CONTEXT = 512


def make(num_blocks: int = 64) -> DraftEngine:
    layout = KvLayout(1, 1, 1, kind="fake")
    kv = memoryview(bytearray(num_blocks * layout.block_bytes))
    return DraftEngine(FakeRunner(kv, layout, num_blocks), num_blocks, MAX_CONTEXT)


def begin(engine: DraftEngine, prompt: Sequence[int], **kwargs: object) -> DraftSequence:
    sequence = DraftSequence(**kwargs)  # type: ignore[arg-type]
    engine.extend(sequence, prompt)
    while engine.catch_up([sequence], 8):
        pass
    return sequence


def propose(engine: DraftEngine, *wants: tuple[DraftSequence, int]) -> list[Draft]:
    return engine.propose([Want(sequence, num_tokens) for sequence, num_tokens in wants])


def said_after(token_ids: Sequence[int], num_tokens: int) -> list[int]:
    tokens = list(token_ids)
    for _ in range(num_tokens):
        tokens.append(next_token_id(tokens))
    return tokens[len(token_ids) :]


def test_drafts_are_what_the_model_says_greedily() -> None:
    engine = make()
    (draft,) = propose(engine, (begin(engine, PROMPT), 5))

    assert said_after(PROMPT, 5) == draft.token_ids


def test_many_sequences_get_what_each_would_get_alone() -> None:
    engine = make()
    prompts = [PROMPT, list(b"another one"), list(b"x" * 70)]
    sequences = [begin(engine, prompt) for prompt in prompts]
    num_forwards = engine.runner.num_forwards
    drafts = propose(engine, *zip(sequences, (3, 1, 6), strict=True))

    assert [said_after(p, n) for p, n in zip(prompts, (3, 1, 6), strict=True)] == [
        draft.token_ids for draft in drafts
    ]
    assert 6 == engine.runner.num_forwards - num_forwards


def test_a_rejected_draft_is_rolled_back() -> None:
    engine = make()
    sequence = begin(engine, PROMPT)
    (draft,) = propose(engine, (sequence, 6))
    kept = [*draft.token_ids[:2], ord("!")]

    assert [True, True, False] == engine.extend(sequence, kept)
    (after,) = propose(engine, (sequence, 4))
    assert said_after([*PROMPT, *kept], 4) == after.token_ids


def test_all_drafts_and_one_token_more_are_caught_up_with() -> None:
    engine = make()
    sequence = begin(engine, PROMPT)
    (draft,) = propose(engine, (sequence, 3))
    kept = [*draft.token_ids, ord("!")]
    engine.extend(sequence, kept)
    (after,) = propose(engine, (sequence, 3))

    assert said_after([*PROMPT, *kept], 3) == after.token_ids


def test_drafts_that_still_follow_are_not_computed_again() -> None:
    engine = make()
    sequence = begin(engine, PROMPT)
    (draft,) = propose(engine, (sequence, 5))
    engine.extend(sequence, draft.token_ids[:2])
    num_forwards = engine.runner.num_forwards
    (after,) = propose(engine, (sequence, 4))

    assert said_after([*PROMPT, *draft.token_ids[:2]], 4) == after.token_ids
    assert 1 == engine.runner.num_forwards - num_forwards


def test_what_follows_a_rejection_was_never_tested() -> None:
    engine = make()
    sequence = begin(engine, PROMPT)
    (draft,) = propose(engine, (sequence, 4))

    assert [False] == engine.extend(sequence, [ord("!"), *draft.token_ids[1:]])


def test_a_prompt_is_caught_up_with_in_chunks_and_not_drafted_for_before() -> None:
    engine = make()
    sequence = DraftSequence()
    engine.extend(sequence, list(b"y" * 100))
    assert 40 == engine.catch_up([sequence], 40)
    (none,) = propose(engine, (sequence, 2))
    assert [] == none.token_ids
    assert 59 == engine.catch_up([sequence], 400)
    (draft,) = propose(engine, (sequence, 2))

    assert said_after(list(b"y" * 100), 2) == draft.token_ids


def test_who_asked_longest_ago_loses_its_blocks_and_can_come_back() -> None:
    engine = make(num_blocks=4)  # three of them, and each sequence takes two
    old = begin(engine, list(b"o" * (BLOCK_SIZE + 4)))
    new = begin(engine, list(b"n" * (BLOCK_SIZE + 4)))

    assert [] == old.blocks
    (draft,) = propose(engine, (new, 2))
    assert said_after(new.token_ids, 2) == draft.token_ids
    while engine.catch_up([old], 8):
        pass
    (again,) = propose(engine, (old, 2))
    assert said_after(old.token_ids, 2) == again.token_ids


def test_sequences_of_one_step_never_take_each_others_blocks() -> None:
    engine = make(num_blocks=4)
    sequences = [DraftSequence() for _ in range(2)]
    for each, letter in zip(sequences, b"on", strict=True):
        engine.extend(each, [letter] * 20)
    assert 19 + 19 == engine.catch_up(sequences, 100)
    drafts = propose(engine, (sequences[0], 30), (sequences[1], 30))

    assert [30, 0] == [len(draft.token_ids) for draft in drafts]
    assert said_after([ord("o")] * 20, 30) == drafts[0].token_ids


def test_the_end_of_the_context_is_not_passed() -> None:
    engine = make()
    sequence = begin(engine, list(b"z" * (MAX_CONTEXT - 1)))
    too_long, fitting = (propose(engine, (sequence, count))[0] for count in (3, 2))

    assert ([], 2) == (too_long.token_ids, len(fitting.token_ids))


def test_a_forgotten_sequence_gives_its_blocks_back() -> None:
    engine = make()
    num_free = engine.num_free_blocks
    sequence = begin(engine, PROMPT)
    taken = num_free - engine.num_free_blocks
    engine.forget(sequence)

    assert (1, num_free) == (taken, engine.num_free_blocks)


def test_draws_are_those_of_the_targets_sampler() -> None:
    """The noise is the request's own, so a draft like the target draws like it."""
    engine = make()
    sampling = DraftSampling(seed=7, temperature=1.5)
    sequence = begin(engine, PROMPT, sampling=sampling, num_prompt_tokens=len(PROMPT))
    (draft,) = propose(engine, (sequence, 12))
    parameters = SamplingParameters(seed=7, temperature=1.5, max_tokens=12)
    sampler, tokens = Sampler(parameters, PROMPT), list(PROMPT)
    for _ in range(12):
        row = logits_after(np.array([hash_of(tokens)], np.uint64))[0]
        tokens.append(sampler.sample(row).token_id)

    assert tokens[len(PROMPT) :] == draft.token_ids
    assert said_after(PROMPT, 12) != draft.token_ids


def test_unlikely_drafts_end_a_proposal() -> None:
    engine = make()
    sequence = begin(engine, PROMPT)
    (draft,) = engine.propose([Want(sequence, 8, least_chance=0.9)])

    assert 1 <= len(draft.token_ids) < 8
    assert all(chance > 0.9 for chance in draft.chances[:-1])


def test_a_reduced_head_speaks_of_the_tokens_that_it_knows() -> None:
    layout = KvLayout(1, 1, 1, kind="fake")
    runner = FakeRunner(memoryview(bytearray(8 * layout.block_bytes)), layout, 8)
    known = np.arange(VOCAB_SIZE)[::-1].copy()
    engine = DraftEngine(runner, 8, MAX_CONTEXT, known)
    (draft,) = propose(engine, (begin(engine, PROMPT), 1))

    assert [VOCAB_SIZE - 1 - next_token_id(PROMPT)] == draft.token_ids
