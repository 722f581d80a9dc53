"""The options that `run`, `generate` and `submit` share, and the request that they make."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from slipstream.shared.messages.generate import ChatMessage, GenerateRequest

DEFAULT_PROMPT = "What is the capital of France?"
_PANEL = "The request"


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen, and how many."""

    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens to generate.", rich_help_panel=_PANEL)
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(help="0 is greedy; else the model's own.", rich_help_panel=_PANEL),
    ] = None
    seed: Annotated[
        int | None, typer.Option(help="Same seed, same tokens.", rich_help_panel=_PANEL)
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Text to stop at; may be repeated.", rich_help_panel=_PANEL),
    ] = None
    system: Annotated[str | None, typer.Option(help="System message.", rich_help_panel=_PANEL)] = (
        None
    )

    def sampled(self) -> GenerateRequest:
        """Return a request that asks nothing yet."""
        return GenerateRequest(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            seed=self.seed,
            stop=self.stop or None,
        )


@dataclass(frozen=True, kw_only=True)
class RequestOptions(SamplingOptions):
    """How the prompt is answered."""

    raw: Annotated[
        bool,
        typer.Option(
            "--raw/--chat",
            help="Send the text as it is, or as a chat message.",
            rich_help_panel=_PANEL,
        ),
    ] = False

    def plain_request(self, prompt: str) -> GenerateRequest:
        """Return a message to publish, whose answer comes in one piece."""
        return msgspec.structs.replace(
            self.sampled(),
            prompt=prompt if self.raw else None,
            messages=None if self.raw else self._messages(prompt),
        )

    def _messages(self, prompt: str) -> list[ChatMessage]:
        user = ChatMessage(role="user", content=prompt)
        system = [ChatMessage(role="system", content=self.system)] if self.system else []
        return [*system, user]


@dataclass(frozen=True, kw_only=True)
class PromptOptions(RequestOptions):
    """How the prompt is answered, and how the answer is shown."""

    stream: Annotated[
        bool,
        typer.Option(
            "--stream/--no-stream", help="Print tokens as they come.", rich_help_panel=_PANEL
        ),
    ] = True
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object and nothing else.", rich_help_panel=_PANEL
        ),
    ] = False
    timeout: Annotated[float, typer.Option(help="Seconds to wait.", rich_help_panel=_PANEL)] = 300.0

    def request(self, prompt: str) -> GenerateRequest:
        """Return the message to publish."""
        return msgspec.structs.replace(
            self.plain_request(prompt),
            stream=self.stream,
            deadline_ms=int(self.timeout * 1000),
        )
