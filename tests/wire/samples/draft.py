"""Samples of what is said to a draft worker."""

import msgspec

from slipstream.shared.messages.draft import (
    DraftClose,
    DraftJob,
    DraftOpen,
    DraftProposal,
    DraftSampling,
    DraftTokens,
    DraftWant,
)

from .parts import ATTEMPT, ENVELOPE, FINGERPRINT, MODEL, REQUEST, TOKENS

SAMPLING = DraftSampling(seed=2**63, temperature=0.75, top_k=40, top_p=0.5)

SAMPLES: dict[str, tuple[msgspec.Struct, msgspec.Struct]] = {
    "draft_open": (
        DraftOpen(
            **ENVELOPE,
            token_ids=TOKENS,
            model=MODEL,
            tokenizer_fingerprint=FINGERPRINT,
            num_prompt_tokens=31,
            sampling=SAMPLING,
        ),
        DraftOpen(**ATTEMPT, token_ids=TOKENS),
    ),
    "draft_close": (
        DraftClose(**ENVELOPE, num_drafted_tokens=6, num_tested_tokens=5, num_accepted_tokens=2),
        DraftClose(**ATTEMPT),
    ),
    "draft_job": (
        DraftJob(
            [
                DraftWant(
                    REQUEST,
                    2,
                    33,
                    TOKENS,
                    4,
                    is_whole=True,
                    num_prompt_tokens=31,
                    sampling=SAMPLING,
                    least_chance=0.25,
                )
            ]
        ),
        DraftJob([]),
    ),
    "draft_tokens": (
        DraftTokens(
            [DraftProposal(REQUEST, 2, 33, TOKENS, is_lost=True, probabilities=[0.5, 0.25, 1.0])]
        ),
        DraftTokens([]),
    ),
}
