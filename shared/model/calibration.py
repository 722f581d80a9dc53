"""
What a model's activations are like: found once, by a float32 pass over some ten thousand tokens.

Needs torch; conversion only, never a running worker.
"""

import contextlib
import importlib
import inspect
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from slipstream.kernels import ops
from slipstream.shared.model.calibration_chats import CHATS
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.packing import rotary_tables
from slipstream.shared.model.tokenizer import Tokenizer

_NUM_TOKENS = 512  # of each text
_NUM_CHARACTERS = 4096  # of each text: more than so many tokens have
# A row longer than so many typical ones counts as one of that length. The first token's input of
# some down projections is hundreds of times as long as any other, and would be all they are for.
_LONGEST = 3.0

# Sources and documentation of the standard library, which every installation has. None of it may be
# used to judge the result (`slipstream eval` takes other modules).
_CODE = (
    *("argparse", "ast", "asyncio.base_events", "dataclasses", "difflib", "email.message"),
    *("ftplib", "functools", "http.client", "ipaddress", "json.decoder", "subprocess"),
    *("tarfile", "threading", "typing", "zipfile"),
)
_PROSE = (
    *("_pydecimal", "configparser", "doctest", "logging", "optparse", "re", "socketserver"),
    *("unittest.mock", "urllib.request", "uuid"),
)

Moments = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Calibration:
    """Second moments by the name of a matrix's input, and the mean key of each layer."""

    moments: dict[str, Moments] = field(default_factory=dict)  # weighted sums of x x^T, [k, k]
    strengths: dict[str, Moments] = field(default_factory=dict)  # their diagonals, [k]
    key_means: list[npt.NDArray[np.float32]] = field(default_factory=list)  # [kv_heads, dim]

    # Matrices of which the diagonals are enough: whole moments take as long as half the model.
    without_moments: Collection[str] = ()

    def add(self, name: str, inputs: Tensor, importance: Tensor) -> None:
        """Take the inputs [rows, k] of a matrix; a row counts as often as its importance says."""
        lengths = inputs.norm(dim=1)
        limited = (_LONGEST * lengths.median() / lengths).clamp(max=1.0).nan_to_num(1.0)
        x = inputs * (limited * importance.sqrt())[:, None]  # moments have its square
        strengths = self.strengths.get(name, np.float32(0.0))
        self.strengths[name] = strengths + x.square().sum(dim=0).numpy()
        if name not in self.without_moments:
            self.moments[name] = self.moments.get(name, np.float32(0.0)) + (x.T @ x).numpy()


def calibration_texts() -> list[str]:
    """Return text of several kinds: code, documentation, and the prose below."""
    texts = [_excerpt(name) for name in _CODE] + [_documentation(name) for name in _PROSE]
    return [text for text in [*texts, *_OWN_PROSE.split("\n---\n")] if text]


def _excerpt(name: str) -> str:
    """Return lines from within a module, past its imports; nothing where there is no source."""
    with contextlib.suppress(OSError):
        source = inspect.getsource(importlib.import_module(name))
        return source[source.index("\n", len(source) // 3) + 1 :][:_NUM_CHARACTERS]
    return ""


def _documentation(name: str) -> str:
    """Return what a module says of itself and of its classes."""
    module = importlib.import_module(name)
    classes = [each for _, each in sorted(vars(module).items()) if inspect.isclass(each)]
    own = [each for each in classes if each.__module__ == name]
    texts = [each.__doc__ for each in (module, *own)]  # of some classes a descriptor
    found = [inspect.cleandoc(text) for text in texts if isinstance(text, str)]
    return "\n\n".join(found)[:_NUM_CHARACTERS]


@torch.inference_mode()
def calibrate(
    tensors: dict[str, Tensor],
    config: ModelConfig,
    tokenizer: Tokenizer,
    texts: list[str],
    without_moments: Collection[str] = (),
) -> Calibration:
    """Run the texts, and conversations in the model's own template, through the float32 model."""
    found = Calibration(without_moments=without_moments)
    keys: list[list[Tensor]] = [[] for _ in range(config.num_layers)]
    for token_ids in _conversations(tokenizer):
        _Pass(tensors, config, found, keys).run(token_ids[:_NUM_TOKENS])
    for i, text in enumerate(texts):
        # The first token is unlike all others, so half of them are what a prompt begins with.
        first = [] if i % 2 or config.bos_token_id is None else [config.bos_token_id]
        token_ids = [*first, *tokenizer.encode(text)][:_NUM_TOKENS]
        _Pass(tensors, config, found, keys).run(token_ids)
    found.key_means.extend(torch.cat(each).mean(0).numpy() for each in keys)
    return found


def _conversations(tokenizer: Tokenizer) -> Iterator[list[int]]:
    if not tokenizer.has_chat_template:
        return
    for question, answer in CHATS:
        prompt = tokenizer.encode_chat([{"role": "user", "content": question}])
        yield [*prompt, *tokenizer.encode(answer, add_special_tokens=False)]


class _Pass:
    """One text through the model, without a KV cache."""

    def __init__(
        self,
        tensors: dict[str, Tensor],
        config: ModelConfig,
        found: Calibration,
        keys: list[list[Tensor]],
    ) -> None:
        self._tensors = tensors
        self._config = config
        self._found = found
        self._keys = keys

    def run(self, token_ids: list[int]) -> None:
        config = self._config
        tables = rotary_tables(config.head_dim, config.rope_theta, len(token_ids))
        cos, sin = (torch.from_numpy(table) for table in tables)
        hidden = functional.embedding(
            torch.tensor(token_ids), self._tensors["model.embed_tokens.weight"]
        )
        for layer_idx in range(config.num_layers):
            hidden = self._layer(hidden, layer_idx, cos, sin)
        norm = self._tensors["model.norm.weight"]
        x = ops.rms_norm(hidden, norm, config.rms_norm_eps)
        self._found.add("head", x, torch.ones(len(x)))

    def _layer(self, hidden: Tensor, layer_idx: int, cos: Tensor, sin: Tensor) -> Tensor:
        prefix, name = f"model.layers.{layer_idx}.", f"layers.{layer_idx}."
        epsilon = self._config.rms_norm_eps
        x = ops.rms_norm(hidden, self._weight(prefix + "input_layernorm"), epsilon)
        attended, importance = self._attend(x, prefix + "self_attn.", layer_idx, cos, sin)
        self._found.add(name + "qkv", x, importance)
        self._found.add(name + "output", attended, importance)
        hidden = hidden + functional.linear(attended, self._weight(prefix + "self_attn.o_proj"))
        x = ops.rms_norm(hidden, self._weight(prefix + "post_attention_layernorm"), epsilon)
        self._found.add(name + "gate_up", x, importance)
        gate = functional.linear(x, self._weight(prefix + "mlp.gate_proj"))
        up = functional.linear(x, self._weight(prefix + "mlp.up_proj"))
        gated = ops.silu_and_multiply(gate, up)
        self._found.add(name + "down", gated, importance)
        return hidden + functional.linear(gated, self._weight(prefix + "mlp.down_proj"))

    def _attend(
        self, x: Tensor, prefix: str, layer_idx: int, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """
        Return what each position attends to, and how important each is.

        That is one, for the position itself, and as many as there are positions that look at it
        with all their attention: the first one's errors, in particular, become everybody's.
        """
        config = self._config
        query, key, value = (
            functional.linear(x, self._weight(f"{prefix}{name}_proj")).view(
                len(x), -1, config.head_dim
            )
            for name in "qkv"
        )
        query, key = ops.rotary(query, cos, sin), ops.rotary(key, cos, sin)
        self._keys[layer_idx].append(key)
        group = config.num_heads // config.num_kv_heads
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(config.head_dim)
        is_future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        attention = scores.masked_fill(is_future, -math.inf).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", attention, value).reshape(len(x), -1)
        return attended, 1.0 + attention.mean(0).sum(0)

    def _weight(self, name: str) -> Tensor:
        return self._tensors[f"{name}.weight"]


_OWN_PROSE = """\
The river had risen in the night. By morning the lower meadow was a sheet of grey water, and the
willows stood in it up to their branches. Nobody in the village was surprised. It happened every
few years, when the snow in the hills melted quickly and the rain came at the same time, and the
older people could tell from the colour of the clouds how long it would last. They moved the sheep
to the upper pasture, carried the sacks of flour to the loft, and waited.

Q: Why is the sky blue?
A: Sunlight is made of many colours. The air scatters short waves, which we see as blue, much more
than long ones, so from every direction of the sky a little blue light reaches our eyes.

Dear Ms. Alvarez, thank you for your letter of 12 March. We have checked the invoice (no. 20417,
EUR 1,284.50) and found that the discount of 5 % was left out by mistake. A corrected copy is
enclosed; please ignore the first one. We apologise for the trouble. Yours sincerely, T. Okafor

To make the soup, peel 500 g of carrots and cut them into thin slices. Melt two spoons of butter in
a large pot, add a chopped onion and cook it gently for five minutes. Add the carrots, a pinch of
salt, and a litre of stock. Let it simmer until the carrots are soft, then blend it and serve it hot
with a spoon of cream and some parsley. It keeps for three days in the refrigerator.
---
"Have you seen the key to the shed?" asked Ann, with one glove already on. "It was on the hook this
morning," said her brother, "and nobody has been there since except the cat." They looked behind the
door, under the bench, and in both pockets of every coat in the hall. In the end it turned up where
it always does: in the lock. Ann laughed, but she was late, and the ice on the pond wouldn't wait.

Three things are needed before a bridge of this kind can carry a train. First, the piers must stand
on rock, not on gravel. Second, the steel has to be free to grow in summer; a span of 200 metres is
about ten centimetres longer in July than in January. Third, somebody has to walk over it every week
and listen. Engineers of the nineteenth century knew the first and the last of these very well.

Question: A shop sells pencils at 3 for $1.20. How much do 10 pencils cost?
Answer: One pencil costs 1.20 / 3 = 0.40 dollars, so 10 pencils cost 10 * 0.40 = 4.00 dollars.

Dear all, the meeting on Thursday begins at 9:30, not at 10. Please read the report (see below) and
send me your comments by Wednesday noon. Lena will present the budget; Tom has the figures for the
second quarter, which are better than we thought. Coffee is in the usual place. Best wishes, Maria

- Wash the spinach, drain it well, and chop it.
- Beat four eggs with salt, pepper and a little milk.
- Heat some oil in a pan; fry the garlic until it smells sweet, then add the spinach.

The history of the town goes back to the twelfth century, when monks drained the marsh and built a
mill. In 1348 the plague killed a third of its people. Trade in wool made it rich again, and the
great hall, whose roof is among the largest of its time, was finished in 1479. Today about 14,000
people live there, most of whom work in the university hospital or in one of the two paper mills.
"""
