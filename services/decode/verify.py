"""
Check draft tokens against the target.

In exact mode it samples its own and compares, so no text can change. In rejection mode, which a
request asks for, drafts have a say in which of the possible texts it is, not in how often each is.
"""

from collections.abc import Sequence

from slipstream.shared.model.acceptance import DraftToken
from slipstream.shared.model.row_passes import Logits, Peak
from slipstream.shared.model.sampling import SampledToken, Sampler


def verify(
    sampler: Sampler, logits: Logits, peaks: Sequence[Peak], draft_token_ids: Sequence[int]
) -> list[SampledToken]:
    """
    Return the target's tokens while they confirm the draft, and the first one that doesn't.

    Row i of `logits` [1 + drafts, vocab], whose peak is `peaks[i]`, follows the first i draft
    tokens. The result has between 1 and 1 + drafts tokens; the last has no KV in the target yet,
    the ones before it are accepted draft tokens. Without a draft this is plain decoding. Nothing
    is sampled behind a token that completes a constraint.
    """
    assert len(logits) == len(draft_token_ids) + 1, (
        f"{len(logits)} rows of logits for {len(draft_token_ids)} draft tokens"
    )
    sampled: list[SampledToken] = []
    for row, peak, draft_token_id in zip(logits, peaks, (*draft_token_ids, None), strict=True):
        draft = None if draft_token_id is None else DraftToken(draft_token_id)
        token = sampler.sample(row, peak, draft)
        sampled.append(token)
        if token.token_id != draft_token_id or token.is_last:
            break
    return sampled
