"""What transformers says: the tokens that ours must equal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from . import prompts

NUM_TOKENS = 32
# Two logits so close are a tie: sums in another order may turn it.
TIE = 1e-4
_TOGETHER = 512  # tokens, the padding among them

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Greedy:
    """A greedy continuation, with the runner-up of each position and how close it came."""

    token_ids: list[int]
    second_ids: list[int]
    gaps: list[float]


class Oracle:
    """Greedy `generate` in float32, past every end of text, once a prompt."""

    def __init__(self, model_dir: Path) -> None:
        # Any: transformers' own types are too wide to be checked.
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model_dir)
        self._model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        self._model.generation_config.eos_token_id = None
        self._known: dict[tuple[int, ...], Greedy] = {}

    def make_prompts(self) -> list[prompts.Prompt]:
        """Return the prompts, cut with transformers' own tokenizer."""
        return prompts.make_prompts(self._encode, self._tokenizer.decode)

    def token_ids(self, prompt: prompts.Prompt) -> list[int]:
        """Return a prompt's tokens as transformers makes them."""
        if prompt.messages is None:
            return self._encode(prompt.text or "")
        ids: list[int] = self._tokenizer.apply_chat_template(
            prompt.messages, add_generation_prompt=True, return_dict=False
        )
        return ids

    @torch.inference_mode()
    def next_logprobs(self, text: str) -> list[float]:
        """Return the log-softmax of the raw logits behind a text, one for each token id."""
        torch.set_num_threads(1)
        logits = self._model(torch.tensor([self._encode(text)])).logits[0, -1]
        found: list[float] = torch.log_softmax(logits.double(), -1).tolist()
        return found

    def prepare(self, chosen: Sequence[prompts.Prompt]) -> None:
        """Continue prompts of like length together, which takes a fraction of the time."""
        wanted = [self.token_ids(prompt) for prompt in chosen]
        wanted = sorted((ids for ids in wanted if tuple(ids) not in self._known), key=len)
        while wanted:
            fitting = [n for n in range(1, len(wanted) + 1) if n * len(wanted[n - 1]) <= _TOGETHER]
            num_together = max(fitting, default=1)
            self._greedy(wanted[:num_together])
            wanted = wanted[num_together:]

    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Return the log-softmax of each token but the first, given those before it."""
        ids = torch.tensor([list(token_ids)])
        with torch.inference_mode():
            rows = self._model(ids).logits[0, :-1].double().log_softmax(-1)
        found: list[float] = rows.gather(1, ids[0, 1:, None])[:, 0].tolist()
        return found

    def prompt_ids(self, fields: Mapping[str, Any]) -> list[int]:  # Any: fields of a request
        """Return the tokens of a request's prompt."""
        known: list[int] | None = fields.get("prompt_token_ids")
        prompt = prompts.Prompt("", fields.get("prompt"), fields.get("messages"))
        return known or self.token_ids(prompt)

    @torch.inference_mode()
    def rows(
        self, prompt_ids: Sequence[int], outputs: Sequence[Sequence[int]]
    ) -> tuple[Rows, list[Rows]]:
        """
        Return the logits behind each token of a prompt, and before each token of its outputs.

        All in one row: outputs see the prompt and what is theirs of the rest.
        """
        torch.set_num_threads(1)
        ids, num_prompt_tokens = list(prompt_ids), len(prompt_ids)
        owners, positions = [-1] * num_prompt_tokens, list(range(num_prompt_tokens))
        for owner, output in enumerate(outputs):
            ids += output
            owners += [owner] * len(output)
            positions += range(num_prompt_tokens, num_prompt_tokens + len(output))
        owner_of = torch.tensor(owners)
        is_seen = (owner_of == -1) | (owner_of == owner_of[:, None])
        mask = torch.zeros(len(ids), len(ids)).masked_fill(~is_seen.tril(), -torch.inf)
        logits = self._model(
            torch.tensor([ids]),
            attention_mask=mask[None, None],
            position_ids=torch.tensor([positions]),
        ).logits[0]
        last = logits[num_prompt_tokens - 1 : num_prompt_tokens]
        before = [
            torch.cat([last, logits[owner_of == owner][:-1]]).numpy()
            for owner in range(len(outputs))
        ]
        return logits[:num_prompt_tokens].numpy(), before

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return what tokens say."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=skip_special)
        return text

    def token_bytes(self) -> list[bytes]:
        """Return the bytes that each token stands for; a control token stands for none."""
        of_byte: dict[int, str] = bytes_to_unicode()
        byte_of = {character: byte for byte, character in of_byte.items()}
        names = self._tokenizer.convert_ids_to_tokens(range(len(self._tokenizer)))
        control = self._tokenizer.added_tokens_decoder
        return [
            b"" if token_id in control else bytes(byte_of[character] for character in name)
            for token_id, name in enumerate(names)
        ]

    def check(self, prompt: prompts.Prompt, ours: list[int]) -> int:
        """
        Compare our tokens with the oracle's; return how many ties were decided our way.

        At a tie either token counts, and the comparison goes on from there with ours.
        """
        prompt_ids = self.token_ids(prompt)
        assert len(ours) == NUM_TOKENS, f"{prompt.name}: {len(ours)} tokens"
        num_equal, num_ties = 0, 0
        while True:
            context = [*prompt_ids, *ours[:num_equal]]
            if tuple(context) not in self._known:
                self._greedy([context])
            theirs = self._known[tuple(context)]
            rest = ours[num_equal:]
            at = _first_difference(rest, theirs.token_ids)
            if at is None:
                return num_ties
            is_tie = theirs.gaps[at] <= TIE and rest[at] == theirs.second_ids[at]
            assert is_tie, (
                f"{prompt.name} ({len(prompt_ids)} tokens): token {num_equal + at} is {rest[at]}, "
                f"transformers says {theirs.token_ids[at]} (ahead by {theirs.gaps[at]:.2g})"
            )
            num_ties += 1
            num_equal += at + 1

    def _encode(self, text: str) -> list[int]:
        # Not cut, and without the warning that a text is longer than the context.
        ids: list[int] = self._tokenizer(text, verbose=False).input_ids
        return ids

    @torch.inference_mode()
    def _greedy(self, contexts: Sequence[Sequence[int]]) -> None:
        """Continue each context; the shorter ones are padded in front, and masked there."""
        # One thread: several of them wait for one another by spinning, and the stack needs a core.
        torch.set_num_threads(1)
        width = max(map(len, contexts))
        padded = [[*[0] * (width - len(each)), *each] for each in contexts]
        mask = [[*[0] * (width - len(each)), *[1] * len(each)] for each in contexts]
        found = self._model.generate(
            torch.tensor(padded),
            attention_mask=torch.tensor(mask),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        best = torch.stack(found.logits, 1).topk(2)
        for row, context in enumerate(contexts):
            self._known[tuple(context)] = Greedy(
                token_ids=found.sequences[row, width:].tolist(),
                second_ids=best.indices[row, :, 1].tolist(),
                gaps=(best.values[row, :, 0] - best.values[row, :, 1]).tolist(),
            )


def _first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (mine, other) in enumerate(pairs) if mine != other), None)
