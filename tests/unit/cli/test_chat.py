"""A chat apart from its stack: history, commands, and how work is ended by Ctrl-C."""

import asyncio
import json
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.services.cli import chat_session
from slipstream.services.cli.chat_commands import ChatCommands, ChatEnded
from slipstream.services.cli.chat_history import ChatHistory
from slipstream.services.cli.chat_session import ChatSession, figures
from slipstream.services.cli.interruption import WorkCancelledError, run_interruptibly
from slipstream.services.cli.prompt_options import SamplingOptions
from slipstream.shared.bus.memory_bus import MemoryBus
from slipstream.shared.client.answers import Answer, RequestFailedError
from slipstream.shared.client.loop_thread import LoopThread
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.ids import RequestId, WorkerId
from slipstream.shared.messages.codec import encode
from slipstream.shared.messages.common import Failed, Timings, Usage
from slipstream.shared.messages.generate import GenerateRequest
from slipstream.shared.messages.reports import WorkerRecord


def usage(prompt: int, output: int) -> Usage:
    return Usage(num_prompt_tokens=prompt, num_output_tokens=output)


def answer(text: str, prompt: int = 10, output: int = 5) -> Answer:
    return Answer(
        text=text,
        token_ids=[],
        finish_reason="stop",
        usage=usage(prompt, output),
        timings=Timings(ttft_ms=94.2, tpot_ms=10.0),
        request_id=RequestId("r"),
        route=None,
        trace_id=None,
        seed=None,
        model=None,
    )


def said(history: ChatHistory, question: str | None = None) -> list[tuple[str, Any]]:
    return [(each.role, each.content) for each in history.messages(question)]


def test_a_prompt_is_all_that_was_said_and_the_question() -> None:
    history = ChatHistory("Be brief.")
    history.add("a", "b", usage(9, 3))

    assert [
        *(("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "c")),
    ] == said(history, "c")


def test_the_oldest_turns_go_when_the_next_would_not_fit() -> None:
    history = ChatHistory()
    for number in range(4):
        history.add(f"question {number}", "answer", usage(100 * number + 80, 20))

    assert [100] * 4 == [turn.num_tokens for turn in history.turns]
    assert 0 == history.make_room("x", 50, context_length=1000)
    # Down to three quarters of the context, so that the next turn pushes out no other.
    assert 2 == history.make_room("x" * 30, 82, context_length=480)
    assert ["question 2", "question 3"] == [turn.question for turn in history.turns]


def test_a_question_that_never_fits_drops_everything_and_ends() -> None:
    history = ChatHistory()
    history.add("a", "b", usage(9, 3))

    assert 1 == history.make_room("x" * 9000, 10, context_length=100)
    assert [] == history.turns


def test_reset_keeps_what_the_model_is_told() -> None:
    history = ChatHistory("Be brief.")
    history.add("a", "b", usage(9, 3))
    ChatCommands(history).run("/reset")

    assert [("system", "Be brief.")] == said(history)


def test_the_system_message_can_be_changed_and_taken_away() -> None:
    history = ChatHistory()
    commands = ChatCommands(history)
    commands.run("/system  Answer in French. ")
    told = said(history)
    commands.run("/system")

    assert ([("system", "Answer in French.")], []) == (told, said(history))


def test_what_begins_with_no_slash_is_a_question() -> None:
    assert ChatCommands(ChatHistory()).run("What is 1/2?") is None


def test_an_unknown_command_lists_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="/nonsense is none of /reset, /system"):
        ChatCommands(ChatHistory()).run("/nonsense x")


def test_help_names_every_command_and_quit_leaves() -> None:
    commands = ChatCommands(ChatHistory())
    shown = commands.run("/help") or ""

    assert [] == [name for name in commands.names if name not in shown]
    with pytest.raises(ChatEnded):
        commands.run("/quit")


def test_a_chat_is_saved_and_saved_again_but_over_nothing_else(tmp_path: Path) -> None:
    history, path = ChatHistory(), tmp_path / "chat.json"
    commands = ChatCommands(history)
    history.add("a", "b", usage(9, 3))
    commands.run(f"/save {path}")
    commands.run(f"/save {path}")
    (tmp_path / "other").write_text("mine")

    assert [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ] == json.loads(path.read_text())
    with pytest.raises(ConfigurationError, match="is there already"):
        commands.run(f"/save {tmp_path / 'other'}")
    with pytest.raises(ConfigurationError, match="No such file"):
        commands.run(f"/save {tmp_path / 'no' / 'folder'}")
    with pytest.raises(ConfigurationError, match="needs the name"):
        commands.run("/save")
    assert "mine" == (tmp_path / "other").read_text()


class Stack:
    """Answers as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *endings: Answer | Failed) -> None:
        self.asked: list[GenerateRequest] = []
        self._endings = iter(endings)
        monkeypatch.setattr(chat_session, "AnswerStream", self._stream)

    def _stream(self, _bus: object, request: GenerateRequest, *, timeout_s: float) -> Any:
        assert request.deadline_ms == timeout_s * 1000
        self.asked.append(request)
        return _Stream(next(self._endings))


class _Stream:
    def __init__(self, ending: Answer | Failed) -> None:
        self._ending = ending
        self.answer: Answer | None = None

    async def pieces(self) -> AsyncIterator[str]:
        if isinstance(self._ending, Failed):
            raise RequestFailedError(self._ending)
        yield self._ending.text
        self.answer = self._ending

    async def cancel(self) -> None: ...


async def session_of(
    history: ChatHistory, context_length: int = 0
) -> tuple[ChatSession, list[str], list[str]]:
    bus = MemoryBus()
    record = WorkerRecord(
        worker_id=WorkerId("d"),
        role="decode",
        epoch=1,
        protocol=1,
        version="1",
        model="m",
        max_context_length=context_length,
    )
    await bus.registry().put("d", encode(record))
    written: list[str] = []
    notices: list[str] = []
    sampling = SamplingOptions(temperature=0.5, max_tokens=50)
    return (
        ChatSession(bus, history, sampling, 9.0, written.append, notices.append),
        written,
        notices,
    )


async def test_an_answer_becomes_part_of_the_next_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack(monkeypatch, answer("one"), answer("two", 30))
    session, written, notices = await session_of(ChatHistory(), 1000)
    await session.ask("first")
    await session.ask("second")

    assert ["one", "two"] == written
    assert ["first", "one", "second"] == [each.content for each in stack.asked[1].messages or []]
    assert (0.5, 50, True) == (
        stack.asked[0].temperature,
        stack.asked[0].max_tokens,
        stack.asked[0].stream,
    )
    assert ([], "m", 1000) == (notices, session.model, session.context_length)


async def test_a_full_context_forgets_with_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack(monkeypatch, answer("one", 100, 50), answer("two"))
    session, _, notices = await session_of(ChatHistory(), 180)
    await session.ask("first")
    await session.ask("second")

    assert ["second"] == [each.content for each in stack.asked[1].messages or []]
    assert ["the context is full: the oldest turn is forgotten"] == notices


async def test_a_prompt_that_is_too_long_after_all_is_shortened_and_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long = Failed(code="context_length_exceeded", message="too long")
    stack = Stack(monkeypatch, answer("one"), answer("two", 20), long, answer("three"), long)
    history = ChatHistory()
    session, _, notices = await session_of(history)
    for question in ("first", "second", "third"):
        await session.ask(question)
    history.reset()

    assert ["second", "two", "third"] == [each.content for each in stack.asked[3].messages or []]
    assert 1 == len(notices)
    with pytest.raises(RequestFailedError, match="too long"):
        await session.ask("fourth")


async def test_what_fails_is_no_part_of_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    Stack(monkeypatch, Failed(code="no_workers", message="nobody"))
    history = ChatHistory()
    session, _, _ = await session_of(history)
    with pytest.raises(RequestFailedError):
        await session.ask("first")

    assert [] == history.turns


def test_figures_tell_speed_and_first_token() -> None:
    assert "5 tokens, 100.0 tokens/s, first after 94 ms" == figures(answer("x"))


def _interrupt() -> None:
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


def test_ctrl_c_ends_work_in_order_and_the_loop_goes_on() -> None:
    ended: list[str] = []

    async def work() -> None:
        _interrupt()
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.01)
            ended.append("in order")

    async def more() -> str:
        return "more"

    with LoopThread("test") as loop:
        with pytest.raises(WorkCancelledError):
            run_interruptibly(loop, work())

        assert ["in order"] == ended
        assert "more" == loop.run(more())


def test_a_second_ctrl_c_is_not_waited_for() -> None:
    cancelled: list[str] = []

    async def stubborn() -> None:
        _interrupt()
        try:
            await asyncio.sleep(30)
        finally:
            _interrupt()
            await asyncio.sleep(0.1)
            cancelled.append("too late to wait for")

    with LoopThread("test") as loop:
        with pytest.raises(KeyboardInterrupt):
            run_interruptibly(loop, stubborn())

        assert [] == cancelled


def test_what_work_raises_is_raised() -> None:
    async def fail() -> None:
        raise ConfigurationError("no")

    with LoopThread("test") as loop, pytest.raises(ConfigurationError, match="no"):
        loop.run(fail())
