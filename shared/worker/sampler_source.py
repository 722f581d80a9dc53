"""The samplers of a worker; what constraints need is loaded with the first that has one."""

import asyncio
from collections.abc import Callable, Sequence

from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.detokenizer import Vocabulary
from slipstream.shared.model.matchers import Matchers
from slipstream.shared.model.sampling import Sampler


class SamplerSource:
    """Makes samplers for sequences, constrained ones away from the event loop."""

    def __init__(self, model: ModelConfig, open_vocabulary: Callable[[], Vocabulary]) -> None:
        self._eos_token_ids = model.eos_token_ids
        self._open_vocabulary = open_vocabulary
        self._num_tokens: int | None = None  # of the tokenizer: a model may have room for more
        self._matchers = Matchers(open_vocabulary, model.vocab_size, model.eos_token_ids)

    async def open(
        self,
        parameters: SamplingParameters,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
    ) -> Sampler:
        """Return a sampler that goes on behind the output. Raises ConstraintError, ModelError."""
        if self._num_tokens is None:
            self._num_tokens = await asyncio.to_thread(self._count_tokens)
        if parameters.constraint is None:
            return self._make(parameters, prompt_token_ids, output_token_ids)
        return await asyncio.to_thread(self._make, parameters, prompt_token_ids, output_token_ids)

    def _make(
        self,
        parameters: SamplingParameters,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
    ) -> Sampler:
        constraint = parameters.constraint
        return Sampler(
            parameters,
            prompt_token_ids,
            output_token_ids,
            eos_token_ids=self._eos_token_ids,
            matcher=None if constraint is None else self._matchers.open(constraint),
            num_tokens=self._num_tokens,
        )

    def _count_tokens(self) -> int:
        # What ends an answer is a token, even if the tokenizer should not know it.
        last = max(self._open_vocabulary().max_token_id, *self._eos_token_ids, -1)
        return last + 1
