"""Proposals of draft tokens: one exchange a step for all sequences of a decode worker."""

import msgspec

from slipstream.shared.ids import RequestId
from slipstream.shared.messages.common import AttemptMessage
from slipstream.shared.messages.packed import PackedInts


class DraftSampling(msgspec.Struct, frozen=True, array_like=True):
    """
    What a draft draws with, so that it draws what the target will.

    The noise of a token is a function of seed, output position and token (`noise.py`): a draft that
    takes the same agrees more often than one that takes the likeliest.
    """

    seed: int
    temperature: float
    top_k: int = 0
    top_p: float = 1.0


class DraftOpen(AttemptMessage, frozen=True, tag="draft_open"):
    """Start drafting for a sequence; carries its tokens so far (and the trace in its headers)."""

    token_ids: PackedInts
    model: str = ""
    tokenizer_fingerprint: str = ""
    num_prompt_tokens: int = 0  # the others are output: the noise is that of output positions
    sampling: DraftSampling | None = None  # None: the likeliest tokens


class DraftClose(AttemptMessage, frozen=True, tag="draft_close"):
    """The sequence has ended; counts for the draft's span."""

    num_drafted_tokens: int = 0
    num_tested_tokens: int = 0
    num_accepted_tokens: int = 0


class DraftWant(msgspec.Struct, frozen=True, array_like=True):
    """
    One sequence that wants a proposal.

    `position` counts all its tokens, `new_token_ids` are those since the last message; a worker
    that misses some answers nothing and gets the whole sequence again (`is_whole`).
    """

    request_id: RequestId
    attempt: int
    position: int
    new_token_ids: PackedInts
    max_num_tokens: int
    is_whole: bool = False
    # As in DraftOpen; with whole sequences only.
    num_prompt_tokens: int = 0
    sampling: DraftSampling | None = None
    # Of a token to be reached and accepted: behind less likely ones nothing is worth proposing.
    least_chance: float = 0.0


class DraftJob(msgspec.Struct, frozen=True, array_like=True, tag="draft_job"):
    """Wants of one step."""

    wants: list[DraftWant]


class DraftProposal(msgspec.Struct, frozen=True, array_like=True):
    """Tokens after `position`; empty when there is nothing to propose."""

    request_id: RequestId
    attempt: int
    position: int
    token_ids: PackedInts
    is_lost: bool = False  # the sequence is unknown or has a gap: send it whole
    probabilities: list[float] | None = None  # of the proposed tokens, for rejection sampling


class DraftTokens(msgspec.Struct, frozen=True, array_like=True, tag="draft_tokens"):
    """Answer to a DraftJob; late ones are dropped by position."""

    proposals: list[DraftProposal]
