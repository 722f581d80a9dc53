"""
Train the blocks of a draft: the target's first layers, frozen, then blocks that learn what it says.

The loss is the cross-entropy to what the target thought of each token of its answers: the likeliest
tokens in each place, of which those that the draft's head knows count. Hinton et al., "Distilling
the Knowledge in a Neural Network", 2015. Needs torch; `slipstream draft train` only.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from slipstream.shared.drafting.answers import Answer
from slipstream.shared.drafting.target import Report
from slipstream.shared.drafting.torch_block import Block, Rotary, block_tensors, run_block
from slipstream.shared.drafting.trained_file import Weights
from slipstream.shared.model.config import ModelConfig

_NUM_TOKENS_OF_BATCH = 4096
_MATRIX_RATE, _VECTOR_RATE = 0.2, 1e-2
_WARM_UP = 0.04  # of the time; the rate falls to nearly nothing over all of it
_FIRST, _LAST = 0.05, 0.02
_REPORT_S = 20.0
_CLIP = 1.0
_HELD_OUT = 32  # every so manieth answer is kept from training
_MAX_CACHED = 2 * 10**9  # numbers, of 2 bytes, that the frozen layers made of batches
_UNSURE = 0.25  # of the target's last norm: too early to be as sure as it is
_NEVER = -1  # a token that the head doesn't know


@dataclass(frozen=True, slots=True)
class Batch:
    """Answers of about one length, padded behind: nothing looks ahead, so nothing sees it."""

    token_ids: Tensor  # [answers, length]
    places: Tensor  # of the rows that are learned from, in [answers * length]
    top_token_ids: Tensor  # [rows, top], places in the head; _NEVER for others
    weights: Tensor  # [rows, top], of each row they add up to 1, or 0
    target_token_ids: Tensor  # [rows], the likeliest of all, as a place in the head
    number: int  # of those to learn from; _NEVER for others


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often the draft's likeliest token is the target's, for each token in a row."""

    rates: Sequence[float]  # rates[k]: of places whose k tokens before agreed too

    def __str__(self) -> str:
        return " ".join(f"{rate:.3f}" for rate in self.rates)


def split_answers(answers: Sequence[Answer]) -> tuple[list[Answer], list[Answer]]:
    """Return the answers to learn from, and the others to judge by."""
    held_out = list(answers[::_HELD_OUT])
    return [each for idx, each in enumerate(answers) if idx % _HELD_OUT], held_out


def frequent_tokens(
    answers: Sequence[Answer], num_tokens: int, always: Iterable[int]
) -> npt.NDArray[np.int32]:
    """Return the tokens that the target says, or nearly says, most; ascending."""
    kept = dict.fromkeys(always)
    counted = np.zeros(1 + max(int(each.top_token_ids.max()) for each in answers))
    for each in answers:
        chances = np.exp(each.top_logprobs.astype(np.float64))
        np.add.at(counted, each.top_token_ids.ravel(), chances.ravel())
    ranked = np.argsort(-counted, kind="stable").tolist()
    return np.array(
        sorted([*kept, *(each for each in ranked if each not in kept)][:num_tokens]), np.int32
    )


class Trainer:
    """Owns what is trained, and the frozen parts around it."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        config: ModelConfig,
        head_token_ids: npt.NDArray[np.int32],
        num_layers: int,
        num_blocks: int,
    ) -> None:
        self._config = config
        self._embedding = tensors["model.embed_tokens.weight"]
        tied = config.tie_word_embeddings
        head = self._embedding if tied else tensors["lm_head.weight"]
        self._head = head[torch.from_numpy(head_token_ids).long()].bfloat16()
        self._places = torch.full((config.vocab_size,), _NEVER)
        self._places[torch.from_numpy(head_token_ids).long()] = torch.arange(len(head_token_ids))
        self._layers = [
            {name: values.bfloat16() for name, values in block_tensors(tensors, idx).items()}
            for idx in range(num_layers)
        ]
        # They begin as the layers that follow there, which know what they hear.
        following = [min(num_layers + idx, config.num_layers - 1) for idx in range(num_blocks)]
        self._blocks: list[Block] = [
            {name: values.clone().requires_grad_() for name, values in block.items()}
            for block in (block_tensors(tensors, idx) for idx in following)
        ]
        norm = tensors["model.norm.weight"] * _UNSURE
        self._norm = norm.requires_grad_()
        self._cache: dict[int, Tensor] = {}
        self._num_cached = 0

    def train(self, answers: Sequence[Answer], seconds: float, *, report: Report) -> None:
        """Learn for so long, in an order that a seed gives."""
        matrices = [each for block in self._blocks for each in block.values() if each.ndim > 1]
        vectors = [each for block in self._blocks for each in block.values() if each.ndim == 1]
        optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=_MATRIX_RATE, weight_decay=0.0),
            torch.optim.AdamW([*vectors, self._norm], lr=_VECTOR_RATE, weight_decay=0.0),
        ]
        parameters = [*matrices, *vectors, self._norm]
        started = reported = time.monotonic()
        losses: list[float] = []
        for num_steps, batch in enumerate(self._endless(answers)):
            now = time.monotonic()
            done = (now - started) / seconds
            if done >= 1.0:
                return
            if now - reported > _REPORT_S:
                reported = now
                report(f"step {num_steps}, {done:.0%}, loss {sum(losses) / len(losses):.3f}")
                losses.clear()
            _set_rates(optimizers, min(done / _WARM_UP + _FIRST, 1.0) * max(1.0 - done, _LAST))
            losses.append(self._learn_from(batch))
            torch.nn.utils.clip_grad_norm_(parameters, _CLIP)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    @torch.inference_mode()
    def agreement(self, answers: Sequence[Answer], num_in_a_row: int) -> Agreement:
        """Compare the likeliest tokens of draft and target in every place of the answers."""
        num_reached = np.zeros(num_in_a_row)
        num_agreed = np.zeros(num_in_a_row)
        for batch in self._batches(answers):
            found = self._logits(batch).argmax(dim=1)
            is_same = (found == batch.target_token_ids).numpy()
            # Rows of one answer follow one another; what comes from the next one is left out.
            is_next = np.diff(batch.places.numpy(), prepend=-2) == 1
            run = np.zeros(len(is_same), np.int64)
            for idx in range(1, len(run)):
                run[idx] = run[idx - 1] + 1 if is_next[idx] and is_same[idx - 1] else 0
            for k in range(num_in_a_row):
                num_reached[k] += np.count_nonzero(run >= k)
                num_agreed[k] += np.count_nonzero(is_same & (run >= k))
        return Agreement((num_agreed / np.maximum(num_reached, 1)).tolist())

    def tensors(self, answers: Sequence[Answer]) -> dict[str, Weights]:
        """Return what was trained by the names of the file; inputs as the answers make them."""
        strengths: list[dict[str, Tensor]] = [{} for _ in self._blocks]
        with torch.inference_mode():
            for batch in self._batches(answers):
                self._hidden(batch, strengths)
        tensors = {"final_norm": self._norm.detach().numpy()}
        for idx, (block, seen) in enumerate(zip(self._blocks, strengths, strict=True)):
            prefix = f"blocks.{idx}"
            tensors |= {f"{prefix}.{name}": each.detach().numpy() for name, each in block.items()}
            tensors |= {f"{prefix}.{name}.strengths": each.numpy() for name, each in seen.items()}
        return tensors

    def _learn_from(self, batch: Batch) -> float:
        """Leave the gradients of a batch; return its loss."""
        x = self._outputs(batch, self._hidden(batch))
        with torch.no_grad():
            # By hand: the gradient of a cross-entropy is the difference of the distributions, and
            # what would be kept of the logits for less is most of what a step takes.
            logits = functional.linear(x, self._head)
            chosen = logits.gather(1, batch.top_token_ids.clamp(min=0)).float()
            log_totals = logits.float().logsumexp(dim=1, keepdim=True)
            loss = ((log_totals - chosen) * batch.weights).sum() / len(x)
            wrong = (logits - log_totals).exp_().bfloat16()
            wrong *= batch.weights.sum(dim=1, keepdim=True).bfloat16()
            places = batch.top_token_ids.clamp(min=0)
            wrong.scatter_add_(1, places, -batch.weights.bfloat16())
            gradient = wrong @ self._head / len(x)
        x.backward(gradient)  # type: ignore[no-untyped-call]
        return loss.item()

    def _logits(self, batch: Batch) -> Tensor:
        return functional.linear(self._outputs(batch, self._hidden(batch)), self._head)

    def _outputs(self, batch: Batch, hidden: Tensor) -> Tensor:
        rows = hidden.flatten(0, 1)[batch.places]
        x = functional.rms_norm(rows, rows.shape[-1:], self._norm, self._config.rms_norm_eps)
        return x.bfloat16()

    def _hidden(self, batch: Batch, strengths: Sequence[dict[str, Tensor]] | None = None) -> Tensor:
        rotary = Rotary.of(self._config, batch.token_ids.shape[1])
        hidden = self._frozen(batch, rotary)
        for idx, block in enumerate(self._blocks):
            seen = None if strengths is None else strengths[idx]
            hidden = run_block(hidden, block, rotary, self._config, seen)
        return hidden

    @torch.no_grad()
    def _frozen(self, batch: Batch, rotary: Rotary) -> Tensor:
        """Return what the target's layers make of a batch, which is computed once."""
        known = self._cache.get(batch.number)
        if known is not None:
            return known.float()
        hidden = functional.embedding(batch.token_ids, self._embedding)
        for layer in self._layers:
            hidden = run_block(hidden, layer, rotary, self._config)
        if batch.number >= 0 and self._num_cached + hidden.numel() <= _MAX_CACHED:
            self._cache[batch.number] = hidden.bfloat16()
            self._num_cached += hidden.numel()
        return hidden

    def _endless(self, answers: Sequence[Answer]) -> Iterator[Batch]:
        generator = np.random.default_rng(0)
        groups = _groups(answers)
        while True:
            for number in generator.permutation(len(groups)).tolist():
                yield self._batch([answers[idx] for idx in groups[number]], number)

    def _batches(self, answers: Sequence[Answer]) -> Iterator[Batch]:
        for group in _groups(answers):
            yield self._batch([answers[idx] for idx in group])

    def _batch(self, answers: Sequence[Answer], number: int = _NEVER) -> Batch:
        length = max(len(each.token_ids) for each in answers) - 1
        token_ids = np.zeros((len(answers), length), np.int64)
        places = []
        for idx, each in enumerate(answers):
            # Nothing follows the last token; the last one of the prompt makes the answer's first.
            num_inputs = len(each.token_ids) - 1
            token_ids[idx, :num_inputs] = each.token_ids[:-1]
            places.append(np.arange(each.num_prompt_tokens - 1, num_inputs) + idx * length)
        top = np.concatenate([each.top_token_ids for each in answers])
        top_token_ids = self._places[torch.from_numpy(top).long()]
        logprobs = torch.from_numpy(np.concatenate([each.top_logprobs for each in answers]))
        weights = logprobs.float().exp() * (top_token_ids != _NEVER)
        weights /= weights.sum(dim=1, keepdim=True).clamp(min=1e-6)
        return Batch(
            torch.from_numpy(token_ids),
            torch.from_numpy(np.concatenate(places)),
            top_token_ids,
            weights,
            top_token_ids[:, 0],
            number,
        )


def _set_rates(optimizers: Sequence[torch.optim.Optimizer], scale: float) -> None:
    for optimizer, rate in zip(optimizers, (_MATRIX_RATE, _VECTOR_RATE), strict=True):
        optimizer.param_groups[0]["lr"] = rate * scale


def _groups(answers: Sequence[Answer]) -> list[npt.NDArray[np.int64]]:
    """Return answers of like lengths together."""
    lengths = np.array([len(each.token_ids) for each in answers])
    order = np.argsort(lengths, kind="stable")
    groups = []
    first = 0
    while first < len(order):
        last = first
        while (
            last < len(order) and (last + 1 - first) * lengths[order[last]] <= _NUM_TOKENS_OF_BATCH
        ):
            last += 1
        last = max(last, first + 1)
        groups.append(order[first:last])
        first = last
    return groups
