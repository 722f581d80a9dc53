"""What a request must be answered: one token after another, no batch, no KV, no scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from slipstream.services.decode.stopping import StopChecker
from slipstream.services.scheduler.admission import Admission, AdmittedRequest
from slipstream.services.scheduler.choices import choice_seed
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model.detokenizer import IncrementalDetokenizer
from slipstream.shared.model.fake_runner import hash_prefix, logits_after
from slipstream.shared.model.sampling import Sampler, raw_logprobs
from slipstream.shared.model.tokenizer import Tokenizer
from slipstream.shared.worker.model_source import open_model
from slipstream.shared.worker.sampler_source import SamplerSource
from tests.end_to_end.client import Answer

from .orders import BLOCK

Logprobs = list[object]  # of one token, as JSON has it


@dataclass
class Said:
    """One choice, from beginning to end."""

    token_ids: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=lambda: [0])  # characters before token i
    text: str = ""
    logprobs: list[Logprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None  # the code, when it can't be answered


@dataclass(frozen=True)
class Expected:
    """The answer to a request."""

    num_prompt_tokens: int
    num_blocks: int  # that it needs at most
    prompt: Answer | None
    choices: list[Said]


class PlainModel:
    """The fake engine's model as if each request were the only one there ever was."""

    def __init__(self, cache_dir: Path) -> None:
        config = SchedulerConfig(cache_dir=cache_dir, engine="fake", is_test_mode=True)
        model = open_model(config)
        self._tokenizer = Tokenizer(model.directory)
        self._admission = Admission(config, model.name, model.config, self._tokenizer)
        self._samplers = SamplerSource(model.config, lambda: self._tokenizer)
        self._model = model.config

    async def answer(self, payload: bytes, seed: int) -> Expected:
        """Return what a right request is answered under the seed that its answer names."""
        request = self._admission.admit(payload, None)
        prompt, sampling = list(request.prompt_token_ids), request.sampling
        seeds = [choice_seed(seed, choice) for choice in range(request.num_choices)]
        return Expected(
            num_prompt_tokens=len(prompt),
            num_blocks=-(-(len(prompt) + sampling.max_tokens) // BLOCK),
            prompt=self._echo(request) if sampling.wants_prompt else None,
            choices=[
                await self._say(prompt, msgspec.structs.replace(sampling, seed=each))
                for each in seeds
            ],
        )

    async def _say(self, prompt: list[int], sampling: SamplingParameters) -> Said:
        said = Said()
        checker = StopChecker(
            sampling,
            self._model.eos_token_ids,
            self._model.max_context_length - len(prompt),
            IncrementalDetokenizer(self._tokenizer, prompt, sampling.skip_special_tokens),
        )
        try:
            sampler = await self._samplers.open(sampling, prompt, ())
            while said.finish_reason is None:
                _say_one(said, prompt, sampler, checker)
        except SlipstreamError as error:
            said.error = error.code
        return said

    def _echo(self, request: AdmittedRequest) -> Answer:
        token_ids, sampling = list(request.prompt_token_ids), request.sampling
        found: Answer = {"token_ids": token_ids}
        if sampling.echo:
            stream = IncrementalDetokenizer(self._tokenizer, (), sampling.skip_special_tokens)
            found["text"] = "".join(map(stream.push, token_ids)) + stream.flush()
        if sampling.num_prompt_logprobs is not None:
            found["logprobs"] = [None, *_scores(token_ids, sampling.num_prompt_logprobs)]
        return found


def _say_one(said: Said, prompt: list[int], sampler: Sampler, checker: StopChecker) -> None:
    (row,) = logits_after(np.array([hash_prefix([*prompt, *said.token_ids])], np.uint64))
    token = sampler.sample(row)
    text, ending = checker.push(token.token_id, is_last=token.is_last)
    said.token_ids.append(token.token_id)
    said.text += text
    said.offsets.append(len(said.text))
    if token.logprobs is not None:
        said.logprobs.append(msgspec.to_builtins(token.logprobs))
    if ending is not None:
        said.finish_reason, said.stop_reason = ending.finish_reason, ending.stop_reason


def _scores(token_ids: Sequence[int], num_top: int) -> list[Logprobs]:
    hashes = [hash_prefix(token_ids[:end]) for end in range(1, len(token_ids))]
    rows = logits_after(np.array(hashes, np.uint64))
    pairs = zip(rows, token_ids[1:], strict=True)
    return [msgspec.to_builtins(raw_logprobs(row, token_id, num_top)) for row, token_id in pairs]
