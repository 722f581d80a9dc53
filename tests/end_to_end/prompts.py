"""Twenty real prompts of 1 to 1,500 tokens: English, code and chats that every machine has."""

import inspect
import pydoc_data.topics
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Tokenize = Callable[[str], list[int]]
Messages = list[dict[str, str]]

_NUM_CHARACTERS = 24_000

# Around the block's 32 tokens and the step's budget of 512, and up to where it hurts.
_ENGLISH = (2, 5, 16, 31, 33, 64, 127, 300, 511, 1024, 1500)
_CODE = (32, 63, 200, 513)
_CHATS: tuple[Messages, ...] = (
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    [
        {"role": "user", "content": "Name three rivers in Europe."},
        {"role": "assistant", "content": "The Danube, the Rhine and the Loire."},
        {"role": "user", "content": "Which of them is the longest?"},
    ],
)


@dataclass(frozen=True)
class Prompt:
    """What is asked, raw or as a chat."""

    name: str
    text: str | None = None
    messages: Messages | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a request."""
        return {"prompt": self.text} if self.messages is None else {"messages": self.messages}


def make_prompts(tokenize: Tokenize, detokenize: Callable[[list[int]], str]) -> list[Prompt]:
    """Cut the texts to the lengths; a cut between two tokens may move by one when read again."""
    english = tokenize(_english())
    code = tokenize(inspect.getsource(textwrap))
    prompts = [Prompt("one word", "Hello")]
    start = 0
    for length in _ENGLISH:
        prompts.append(Prompt(f"english-{length}", detokenize(english[start : start + length])))
        start += length
    start = 0
    for length in _CODE:
        prompts.append(Prompt(f"code-{length}", detokenize(code[start : start + length])))
        start += length
    prompts += [Prompt(f"chat-{number}", messages=chat) for number, chat in enumerate(_CHATS)]
    prompts.append(
        Prompt("many languages", "Grüße aus Zürich! 你好,世界。 Привет 🌍🚀 = naïve café")
    )
    return prompts


def _english() -> str:
    text = "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
    return text[:_NUM_CHARACTERS]
