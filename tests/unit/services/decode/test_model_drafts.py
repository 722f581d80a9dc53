"""Drafts of a model within the decode worker: what is asked for, learned and let go of."""

from structlog.testing import capture_logs

from slipstream.services.decode.batch import Part
from slipstream.services.decode.draft_policy import DraftPolicy
from slipstream.services.decode.draft_sampling import sampling_of
from slipstream.services.decode.model_drafts import ModelDrafts
from slipstream.services.decode.sequence import DecodeSequence
from slipstream.shared.drafting.drafter import Drafter
from slipstream.shared.drafting.engine import DraftEngine
from slipstream.shared.kv.layout import KvLayout
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model.fake_runner import FakeRunner, next_token_id
from slipstream.shared.model.runner import SequenceRows
from slipstream.shared.model.sampling import SampledToken
from slipstream.shared.worker.engine import EngineThread

from .decode_samples import make_sequence, say

NUM_BLOCKS = 64
LONG_S, SHORT_S = 50e-3, 1e-3  # steps beside which the fake model's drafts are cheap, or dear


class Drafting:
    """A sequence that says what the fake model would, or something else, and its drafts."""

    def __init__(self, *, takes_ngrams: bool = False, step_s: float = LONG_S) -> None:
        self.step_s = step_s
        layout = KvLayout(1, 1, 1, kind="fake")
        kv = memoryview(bytearray(NUM_BLOCKS * layout.block_bytes))
        self.engine = DraftEngine(FakeRunner(kv, layout, NUM_BLOCKS), NUM_BLOCKS, 1000)
        self.thread = EngineThread(self.engine.runner)
        self.drafts = ModelDrafts(
            DraftPolicy(8), Drafter(self.engine, takes_ngrams=takes_ngrams), self.thread
        )

    async def begin(self, prompt: str = "a prompt", **fields: object) -> DecodeSequence:
        sequence = make_sequence(list(prompt.encode()), max_tokens=900, **fields)
        await self.drafts.open(sequence)
        sequence.num_computed_tokens = len(sequence.token_ids) - 1
        return sequence

    async def step(self, sequence: DecodeSequence, says: str | None = None) -> list[int]:
        """Verify what is proposed against a text, or against the model; return the proposal."""
        proposals = await self.drafts.propose([sequence])
        draft = list(proposals.get(sequence.attempt, ()))
        said: list[int] = []
        for guess in (*draft, None):
            right = next_token_id(sequence.token_ids) if says is None else ord(says[len(said)])
            said.append(right)
            say(sequence, chr(right))
            if guess != right:
                break
        tokens = [*sequence.token_ids[: -len(said)], *draft]
        rows = SequenceRows(tokens, len(tokens) - 1 - len(draft), 1 + len(draft), [1], 1)
        part = Part(sequence, rows, draft, [SampledToken(each) for each in said], is_stream=True)
        sequence.num_computed_tokens = len(sequence.token_ids) - 1
        self.drafts.stepped([part], self.step_s + 1e-4 * len(draft))
        return draft


async def test_a_draft_that_is_right_is_believed_and_grows() -> None:
    drafting = Drafting()
    sequence = await drafting.begin()
    lengths = [len(await drafting.step(sequence)) for _ in range(12)]

    assert lengths[-1] >= 6
    assert all(length > 0 for length in lengths[1:])


async def test_a_draft_that_is_wrong_steps_aside() -> None:
    drafting = Drafting(step_s=SHORT_S)
    sequence = await drafting.begin()
    lengths = [len(await drafting.step(sequence, "~" * 9)) for _ in range(60)]

    assert sum(lengths[:5]) > 0
    assert sum(lengths[30:]) <= 4


async def test_as_many_as_a_request_wants_are_verified_whatever_they_bring() -> None:
    drafting = Drafting()
    sequence = await drafting.begin(num_speculative_tokens=3)
    lengths = [len(await drafting.step(sequence, "~" * 9)) for _ in range(40)]

    assert {3} == set(lengths[1:])


async def test_a_long_prompt_is_computed_a_piece_a_step() -> None:
    drafting = Drafting()
    sequence = await drafting.begin("x" * 200, num_speculative_tokens=2)
    lengths = [len(await drafting.step(sequence)) for _ in range(5)]

    # Few enough are left after three pieces to go with the first draft.
    assert [0, 0, 2, 2, 2] == lengths


async def test_ngrams_that_are_right_more_often_take_the_place_of_the_model() -> None:
    drafting = Drafting(takes_ngrams=True)
    sequence = await drafting.begin("abcdefgh" * 4)
    text = "abcdefgh" * 40
    for _ in range(14):
        said = len(sequence.token_ids) % 8
        await drafting.step(sequence, text[said:])
    before = drafting.engine.runner.num_forwards
    said = len(sequence.token_ids) % 8
    draft = await drafting.step(sequence, text[said:])

    assert text[said : said + len(draft)] == "".join(map(chr, draft))
    assert (8, before) == (len(draft), drafting.engine.runner.num_forwards)


async def test_an_ended_sequence_gives_its_blocks_back() -> None:
    drafting = Drafting()
    sequence = await drafting.begin()
    await drafting.step(sequence)
    await drafting.step(sequence)
    taken = NUM_BLOCKS - 1 - drafting.engine.num_free_blocks
    await drafting.drafts.close(sequence)
    await drafting.drafts.propose([])

    assert taken > 0
    assert NUM_BLOCKS - 1 == drafting.engine.num_free_blocks
    await drafting.drafts.shut()


async def test_a_request_without_speculation_is_not_followed() -> None:
    drafting = Drafting()
    sequence = await drafting.begin(num_speculative_tokens=0)

    assert [] == await drafting.step(sequence)
    assert 0 == drafting.engine.runner.num_forwards


def test_what_is_drawn_is_told_but_not_where_drafts_must_not_know_the_noise() -> None:
    drawn = SamplingParameters(seed=3, temperature=0.5, top_k=7, top_p=0.5)
    greedy = SamplingParameters(seed=3, temperature=0.0)
    rejecting = SamplingParameters(seed=3, speculation_mode="rejection")
    found = sampling_of(drawn)

    assert found is not None
    assert (3, 0.5, 7, 0.5) == (found.seed, found.temperature, found.top_k, found.top_p)
    assert [None, None] == [sampling_of(greedy), sampling_of(rejecting)]


async def test_a_model_that_breaks_is_asked_no_more_and_breaks_nothing() -> None:
    drafting = Drafting()
    sequence = await drafting.begin(num_speculative_tokens=2)
    await drafting.step(sequence)
    drafting.engine.runner.close()  # its memory is gone
    with capture_logs() as lines:
        lengths = [len(await drafting.step(sequence)) for _ in range(3)]

    assert [0, 0, 0] == lengths
    assert ["draft_failed"] == [line["event"] for line in lines]
