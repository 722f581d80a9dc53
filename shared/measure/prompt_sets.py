"""The prompts that speculation is measured with: files of messages, each line with its source."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slipstream.shared.messages.generate import ChatMessage

SETS = ("chat", "copy_edit", "code", "summarize")
_DIRECTORY = Path(__file__).parent / "prompts"


class Prompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One prompt of a set, and where its text is from."""

    id: str
    source: str
    messages: list[ChatMessage]

    @property
    def text(self) -> str:
        """All that is said in it."""
        return "\n".join(str(message.content) for message in self.messages)


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts of one kind."""

    name: str
    prompts: Sequence[Prompt]


def read_set(name: str) -> PromptSet:
    """Return a set, in the order of its file."""
    lines = (_DIRECTORY / f"{name}.jsonl").read_bytes().splitlines()
    return PromptSet(name, [msgspec.json.decode(line, type=Prompt) for line in lines])
