"""The turns of a chat, and how many of them the model can still take in. No I/O here."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.shared.messages.common import Usage
from slipstream.shared.messages.generate import ChatMessage

_CHARACTERS_PER_TOKEN = 3  # of a text that nobody has counted: rather too many tokens than too few
_TURN_TOKENS = 8  # what a chat template puts around a message
# What goes at once, so that not every further turn pushes out another one: each time the cached
# beginning of the prompt is lost.
_SHARE_KEPT = 0.75


@dataclass(frozen=True)
class Turn:
    """A question with its answer."""

    question: str
    answer: str
    num_tokens: int


class ChatHistory:
    """What was said so far. A question belongs to it once it is answered."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self.turns: list[Turn] = []

    def messages(self, question: str | None = None) -> list[ChatMessage]:
        """Return everything as the model is told it."""
        said = [ChatMessage(role="system", content=self.system)] if self.system else []
        for turn in self.turns:
            said.append(ChatMessage(role="user", content=turn.question))
            said.append(ChatMessage(role="assistant", content=turn.answer))
        if question is not None:
            said.append(ChatMessage(role="user", content=question))
        return said

    def add(self, question: str, answer: str, usage: Usage) -> None:
        """Note an answered question, by what all of the prompt and the answer took."""
        whole = usage.num_prompt_tokens + usage.num_output_tokens
        # At least what was just generated: the turns before it are estimates in part.
        num_tokens = max(whole - self.num_tokens, usage.num_output_tokens)
        self.turns.append(Turn(question, answer, num_tokens))

    def reset(self) -> None:
        """Forget all turns."""
        self.turns = []

    @property
    def num_tokens(self) -> int:
        """About how many tokens all of it takes."""
        system = estimated_tokens([self.system]) if self.system else 0
        return system + sum(turn.num_tokens for turn in self.turns)

    def make_room(self, question: str, max_tokens: int, context_length: int) -> int:
        """Drop the oldest turns where question and answer would not fit; return how many."""
        needed = estimated_tokens([question]) + max_tokens
        if self.num_tokens + needed <= context_length:
            return 0
        return self._drop_to(max(0, int(context_length * _SHARE_KEPT) - needed))

    def drop_oldest(self) -> bool:
        """Drop one turn; False where there is none."""
        if not self.turns:
            return False
        del self.turns[0]
        return True

    def _drop_to(self, num_tokens: int) -> int:
        num_dropped = 0
        while self.num_tokens > num_tokens and self.drop_oldest():
            num_dropped += 1
        return num_dropped


def estimated_tokens(texts: Sequence[str | None]) -> int:
    """Return about how many tokens texts take as messages."""
    return sum(_TURN_TOKENS + len(text or "") // _CHARACTERS_PER_TOKEN for text in texts)
