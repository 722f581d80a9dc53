"""What a target says to training prompts: what a draft is made to say before it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from slipstream.shared.drafting.prompts import training_prompts
from slipstream.shared.drafting.target import Report, Target
from slipstream.shared.kv.layout import BLOCK_SIZE
from slipstream.shared.messages.sampling import SamplingParameters
from slipstream.shared.model.row_passes import Scores, TokenIds, row_passes
from slipstream.shared.model.runner import ModelRunner, SequenceRows
from slipstream.shared.model.sampling import Sampler
from slipstream.shared.model.tokenizer import Tokenizer

_NUM_OF_SHARD = 512  # answers that are written together
_BATCH = 32
_MAX_PROMPT_TOKENS = 512
_MAX_OUTPUT_TOKENS = 160
_TEMPERATURES = (0.0, 0.7)  # half of the answers each
# Of the target's distribution so many tokens are kept: nine tenths of it, in answers of both kinds.
NUM_TOP = 16
_NUM_BLOCKS_OF_ONE = -(-(_MAX_PROMPT_TOKENS + _MAX_OUTPUT_TOKENS) // BLOCK_SIZE)

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False, slots=True)
class Answer:
    """A prompt's tokens, those of the answer, and what the target thought of each of these."""

    token_ids: Tokens
    num_prompt_tokens: int
    # Of each token of the answer: what was likeliest in its place, and its logarithmic probability.
    top_token_ids: Tokens  # [answer, NUM_TOP]
    top_logprobs: npt.NDArray[np.float16]


@dataclass(slots=True)
class _Asked:
    place: int
    token_ids: list[int]
    num_prompt_tokens: int
    sampler: Sampler
    blocks: Sequence[int]
    num_computed: int = 0
    is_over: bool = False
    top_token_ids: list[TokenIds] = field(default_factory=list)
    top_logprobs: list[Scores] = field(default_factory=list)

    def rows(self) -> SequenceRows:
        num_rows = len(self.token_ids) - self.num_computed
        return SequenceRows(self.token_ids, self.num_computed, num_rows, self.blocks, 1)

    def answer(self) -> Answer:
        return Answer(
            np.array(self.token_ids, np.int32),
            self.num_prompt_tokens,
            np.array(self.top_token_ids, np.int32),
            np.array(self.top_logprobs, np.float16),
        )


def collect_answers(
    target: Target, directory: Path, num_answers: int, num_threads: int, *, report: Report
) -> list[Answer]:
    """
    Return so many answers, of which those that lie in the directory are not computed again.

    They come in shards, each a function of its number and the target alone.
    """
    directory.mkdir(parents=True, exist_ok=True)
    num_shards = -(-num_answers // _NUM_OF_SHARD)
    prompts = training_prompts(0)
    answers: list[Answer] = []
    tokenizer = target.tokenizer()
    runner = target.runner(1 + _BATCH * _NUM_BLOCKS_OF_ONE, num_threads)
    try:
        for shard_idx in range(num_shards):
            asked = list(islice(prompts, _NUM_OF_SHARD))
            path = directory / f"answers-{shard_idx:04}.safetensors"
            if not path.is_file():
                report(f"answers {shard_idx * _NUM_OF_SHARD} to {(shard_idx + 1) * _NUM_OF_SHARD}")
                made = _Asking(target, tokenizer, runner, shard_idx).answer(asked)
                write_answers(path, made)
            answers += read_answers(path)
    finally:
        runner.close()
    return answers[:num_answers]


def write_answers(path: Path, answers: Sequence[Answer]) -> None:
    """Write them to a safetensors file, whole or not at all."""
    tensors = {
        "token_ids": np.concatenate([each.token_ids for each in answers]),
        "top_token_ids": np.concatenate([each.top_token_ids for each in answers]),
        "top_logprobs": np.concatenate([each.top_logprobs for each in answers]),
        "lengths": np.array([len(each.token_ids) for each in answers], np.int32),
        "num_prompt_tokens": np.array([each.num_prompt_tokens for each in answers], np.int32),
    }
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    partial.replace(path)


def read_answers(path: Path) -> list[Answer]:
    """Return what was written."""
    tensors = load_file(path)
    lengths, num_prompt_tokens = tensors["lengths"], tensors["num_prompt_tokens"]
    ends, answer_ends = np.cumsum(lengths)[:-1], np.cumsum(lengths - num_prompt_tokens)[:-1]
    return [
        Answer(*each)
        for each in zip(
            np.split(tensors["token_ids"], ends),
            num_prompt_tokens.tolist(),
            np.split(tensors["top_token_ids"], answer_ends),
            np.split(tensors["top_logprobs"], answer_ends),
            strict=True,
        )
    ]


class _Asking:
    """A batch that prompts join as soon as there is a place."""

    def __init__(
        self, target: Target, tokenizer: Tokenizer, runner: ModelRunner, shard_idx: int
    ) -> None:
        self._target = target
        self._tokenizer = tokenizer
        self._runner = runner
        self._shard_idx = shard_idx

    def answer(self, prompts: Sequence[str]) -> list[Answer]:
        """Return the answers, in the order of the prompts."""
        waiting = self._waiting(prompts)
        free = list(range(_BATCH))
        running: list[tuple[int, _Asked]] = []
        done: dict[int, Answer] = {}
        while True:
            while free and (asked := next(waiting, None)) is not None:
                seat = free.pop()
                first = 1 + seat * _NUM_BLOCKS_OF_ONE
                asked.blocks = range(first, first + _NUM_BLOCKS_OF_ONE)
                running.append((seat, asked))
            if not running:
                return [done[place] for place in sorted(done)]
            self._step([asked for _, asked in running])
            for seat, asked in running:
                if asked.is_over:
                    free.append(seat)
                    done[asked.place] = asked.answer()
            running = [(seat, asked) for seat, asked in running if not asked.is_over]

    def _waiting(self, prompts: Sequence[str]) -> Iterator[_Asked]:
        for idx, prompt in enumerate(prompts):
            token_ids = self._encode(prompt)
            if len(token_ids) > _MAX_PROMPT_TOKENS:
                continue
            place = self._shard_idx * _NUM_OF_SHARD + idx
            parameters = SamplingParameters(
                seed=place,
                temperature=_TEMPERATURES[place % len(_TEMPERATURES)],
                max_tokens=_MAX_OUTPUT_TOKENS,
            )
            yield _Asked(place, token_ids, len(token_ids), Sampler(parameters, token_ids), ())

    def _encode(self, prompt: str) -> list[int]:
        if self._tokenizer.has_chat_template:
            return self._tokenizer.encode_chat([{"role": "user", "content": prompt}])
        return self._tokenizer.encode(prompt)

    def _step(self, batch: Sequence[_Asked]) -> None:
        logits = self._runner.forward([asked.rows() for asked in batch])
        passes = row_passes()
        for row, asked, peak in zip(logits, batch, passes.peaks(logits), strict=True):
            top = passes.largest(row, NUM_TOP)
            asked.top_token_ids.append(top)
            asked.top_logprobs.append(row[top] - passes.log_total(row, peak))
            asked.num_computed = len(asked.token_ids)
            token_id = asked.sampler.sample(row, peak).token_id
            asked.token_ids.append(token_id)
            num_output_tokens = len(asked.token_ids) - asked.num_prompt_tokens
            asked.is_over = (
                token_id in self._target.config.eos_token_ids
                or num_output_tokens >= _MAX_OUTPUT_TOKENS
            )
