"""How the tokens of one request are chosen, after validation: every field is set and in range."""

from typing import Literal

import msgspec

# How drafts are verified: by comparing, or by rejection sampling.
SpeculationMode = Literal["exact", "rejection"]


class Constraint(msgspec.Struct, frozen=True, array_like=True):
    """
    What the whole answer must match: a JSON schema (its text) or a regex.

    It names no library: whoever samples compiles it. A choice travels as the regex of its entries.
    """

    kind: Literal["json", "regex"]
    text: str


class SamplingParameters(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """
    Parameters of the sampler. `seed` and the output position fix all randomness.

    In rejection mode what a draft proposed at a position has a say in its token too.
    """

    seed: int
    temperature: float = 1.0  # 0 = greedy
    top_p: float = 1.0  # 1 = off
    top_k: int = 0  # 0 = off
    min_p: float = 0.0  # 0 = off
    repetition_penalty: float = 1.0  # over prompt and output; 1 = off
    presence_penalty: float = 0.0  # over output; 0 = off
    frequency_penalty: float = 0.0  # over output; 0 = off
    logit_bias: dict[int, float] = {}  # -100 bans, +100 forces
    min_tokens: int = 0
    max_tokens: int = 256
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None  # None: no logprobs; 0: the sampled token's alone
    skip_special_tokens: bool = True
    num_speculative_tokens: int | None = None  # None: the worker decides; 0: no speculation
    constraint: Constraint | None = None
    echo: bool = False  # the ending repeats the prompt
    num_prompt_logprobs: int | None = None  # of the prompt's tokens; None: none; 0: theirs alone
    speculation_mode: SpeculationMode = "exact"

    @property
    def wants_prompt(self) -> bool:
        """The answer says something of the prompt."""
        return self.echo or self.num_prompt_logprobs is not None


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """
    Raw log-softmax of the model's logits at one output position.

    `top_token_ids` and `top_logprobs` are sorted, highest first, and may leave out the sampled
    token.
    """

    token_id: int
    logprob: float
    top_token_ids: list[int]
    top_logprobs: list[float]
