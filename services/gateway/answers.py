"""What has come of each choice, and the whole answer of a request that is not streamed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from slipstream.services.gateway.errors import ApiError
from slipstream.services.gateway.journeys import Journey, journey_of
from slipstream.services.gateway.plans import Plan
from slipstream.services.gateway.shapes import (
    ChatAnswer,
    ChatChoice,
    ChatCompletion,
    CompletionTokensDetails,
    FinishReason,
    FunctionCall,
    PromptTokensDetails,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    ToolCall,
    Usage,
)
from slipstream.services.gateway.token_texts import TokenTexts
from slipstream.services.gateway.tool_calls import Arguments, CallBegins, ToolCallReader, Words
from slipstream.services.gateway.tools import CALL_END
from slipstream.shared.messages.common import Accepted
from slipstream.shared.messages.generate import Finished, TokenFrame
from slipstream.shared.messages.sampling import TokenLogprobs


@dataclass(frozen=True, kw_only=True)
class Head:
    """What every object of an answer begins with."""

    id: str
    created: int
    model: str
    fingerprint: str
    seed: int | None


@dataclass(eq=False)
class Choice:
    """What has come of one choice."""

    index: int
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_tokens: int = 0
    text_length: int = 0
    ending: Finished | None = None

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)


class Book:
    """All choices of all requests of one HTTP request."""

    def __init__(self, plan: Plan, *, keeps_text: bool) -> None:
        self.plan = plan
        self._keeps_text = keeps_text
        num_choices = len(plan.requests) * plan.num_choices
        self.choices = [Choice(index) for index in range(num_choices)]
        self._num_prompt_tokens: dict[int, int] = {}

    def accept(self, request: int, accepted: Accepted) -> None:
        """Note the size of a prompt."""
        self._num_prompt_tokens[request] = accepted.num_prompt_tokens or 0

    def add(self, request: int, frame: TokenFrame) -> Choice:
        """Add what a choice says; return the choice."""
        choice = self._choice(request, frame.choice)
        choice.num_tokens += len(frame.token_ids)
        choice.text_length += len(frame.text)
        if self._keeps_text:
            choice.pieces.append(frame.text)
            choice.logprobs += frame.logprobs or []
        return choice

    def end(self, request: int, ending: Finished) -> Choice:
        """Note the ending of a choice; return the choice. Raises ApiError for a cancelled one."""
        if ending.finish_reason == "abort":
            raise ApiError("cancelled", "the request was cancelled")
        choice = self._choice(request, ending.choice)
        choice.ending = ending
        self._num_prompt_tokens[request] = ending.usage.num_prompt_tokens
        return choice

    @property
    def usage(self) -> Usage:
        """The tokens so far: what was generated adds up, each prompt counts once."""
        usages = [each.ending.usage for each in self.choices if each.ending is not None]
        num_accepted = sum(each.num_accepted_tokens for each in usages)
        num_tested = sum(each.num_tested_tokens for each in usages)
        num_prompt_tokens = sum(self._num_prompt_tokens.values())
        num_output_tokens = sum(
            each.num_tokens if each.ending is None else each.ending.usage.num_output_tokens
            for each in self.choices
        )
        return Usage(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=num_output_tokens,
            total_tokens=num_prompt_tokens + num_output_tokens,
            prompt_tokens_details=PromptTokensDetails(self._num_cached_tokens()),
            completion_tokens_details=CompletionTokensDetails(
                0, num_accepted, max(0, num_tested - num_accepted)
            ),
        )

    @property
    def journey(self) -> Journey | None:
        """How the first choice went."""
        return journey_of(self.choices[0].ending)

    def _num_cached_tokens(self) -> int:
        firsts = self.choices[:: self.plan.num_choices]
        return sum(
            each.ending.usage.num_cached_tokens for each in firsts if each.ending is not None
        )

    def _choice(self, request: int, choice: int) -> Choice:
        return self.choices[request * self.plan.num_choices + choice]


def finish_reason_of(ending: Finished, *, has_calls: bool = False) -> FinishReason:
    """Return OpenAI's word for why an answer ended; a call that was cut short is no call yet."""
    if ending.finish_reason == "length":
        return "length"
    return "tool_calls" if has_calls else "stop"


def stop_reason_of(ending: Finished, plan: Plan) -> int | str | None:
    """Return by which string or token of the client's it ended; not by one that we added."""
    is_ours = plan.call_form == "marked_once" and ending.stop_reason == CALL_END
    return None if is_ours else ending.stop_reason


def whole_answer(book: Book, head: Head, texts: TokenTexts) -> ChatCompletion | TextCompletion:
    """Return the answer to a request that is not streamed."""
    if book.plan.kind == "chat":
        return ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[_chat_choice(each, book.plan, texts) for each in book.choices],
            usage=book.usage,
            system_fingerprint=head.fingerprint,
            seed=head.seed,
            slipstream=book.journey,
        )
    return TextCompletion(
        id=head.id,
        created=head.created,
        model=head.model,
        choices=[_text_choice(each, book.plan, texts) for each in book.choices],
        usage=book.usage,
        system_fingerprint=head.fingerprint,
        seed=head.seed,
        slipstream=book.journey,
    )


def _chat_choice(choice: Choice, plan: Plan, texts: TokenTexts) -> ChatChoice:
    ending = _ending_of(choice)
    message = _message(choice.text, plan)
    return ChatChoice(
        index=choice.index,
        message=message,
        logprobs=texts.chat(choice.logprobs) if plan.has_logprobs else None,
        finish_reason=finish_reason_of(ending, has_calls=message.tool_calls is not msgspec.UNSET),
        stop_reason=stop_reason_of(ending, plan),
        seed=ending.seed,
    )


def _message(text: str, plan: Plan) -> ChatAnswer:
    """Return what the assistant says, with the calls in it apart from its words."""
    if plan.call_form is None:
        return ChatAnswer(content=text)
    reader = ToolCallReader(plan.call_form)
    words: list[str] = []
    calls: list[ToolCall] = []
    for piece in [*reader.feed(text), *reader.close()]:
        match piece:
            case Words():
                words.append(piece.text)
            case CallBegins():
                calls.append(ToolCall(id=piece.id, function=FunctionCall(piece.name, "")))
            case Arguments():
                function = calls[-1].function
                said = FunctionCall(function.name, function.arguments + piece.text)
                calls[-1] = msgspec.structs.replace(calls[-1], function=said)
    if not calls:
        return ChatAnswer(content="".join(words))
    return ChatAnswer(content="".join(words) or None, tool_calls=calls)


def _text_choice(choice: Choice, plan: Plan, texts: TokenTexts) -> TextChoice:
    ending = _ending_of(choice)
    echoed = ending.prompt.text if ending.prompt is not None and plan.echoed else ""
    logprobs = None
    if plan.has_logprobs:
        parts = [texts.text(choice.logprobs, len(echoed))]
        if plan.echoed and ending.prompt is not None and ending.prompt.logprobs is not None:
            parts.insert(0, texts.echoed(ending.prompt.token_ids, ending.prompt.logprobs))
        logprobs = _joined(parts)
    return TextChoice(
        index=choice.index,
        text=echoed + choice.text,
        logprobs=logprobs,
        finish_reason=finish_reason_of(ending),
        stop_reason=ending.stop_reason,
        seed=ending.seed,
    )


def _ending_of(choice: Choice) -> Finished:
    assert choice.ending is not None, "an answer is made when every choice has ended"
    return choice.ending


def _joined(parts: Sequence[TextLogprobs]) -> TextLogprobs:
    return TextLogprobs(
        [token for part in parts for token in part.tokens],
        [logprob for part in parts for logprob in part.token_logprobs],
        [top for part in parts for top in part.top_logprobs],
        [offset for part in parts for offset in part.text_offset],
    )
