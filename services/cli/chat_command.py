"""`slipstream chat`: a conversation with a running stack."""

import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.services.cli.connection import NatsUrl, answered, connected
from slipstream.services.cli.console import quiet_logs
from slipstream.services.cli.option_groups import with_options
from slipstream.services.cli.prompt_options import SamplingOptions
from slipstream.shared.errors import SlipstreamError
from slipstream.shared.nats_config import DEFAULT_NATS_URL

if TYPE_CHECKING:
    from slipstream.services.cli.chat_commands import ChatCommands
    from slipstream.services.cli.chat_history import ChatHistory
    from slipstream.services.cli.chat_session import ChatSession
    from slipstream.services.cli.chat_terminal import ChatTerminal
    from slipstream.shared.client.loop_thread import LoopThread

_LEAVE_AFTER = 2  # times Ctrl-C without a line in between
_INTERRUPTED = 128 + signal.SIGINT


@with_options
def chat(
    *,
    nats: NatsUrl = DEFAULT_NATS_URL,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds to wait for an answer.")] = 300,
    json: Annotated[bool, typer.Option("--json", help="One JSON object an answer.")] = False,
    sampling: SamplingOptions = SamplingOptions(),  # noqa: B008 - frozen
) -> None:
    r"""
    Talk with the model of a running stack, turn by turn; each line on a pipe is a turn.

    Ctrl-C ends an answer, a second one the chat; Ctrl-D leaves, /help lists what else there is.

    For example:

      slipstream chat

      slipstream chat --system "Answer in one sentence." --temperature 0.7

      printf 'My name is Ada.\nWhat is my name?\n' | slipstream chat
    """
    from slipstream.services.cli.chat_commands import ChatCommands  # noqa: PLC0415 - --help is quick
    from slipstream.services.cli.chat_history import ChatHistory  # noqa: PLC0415 - keeps --help quick
    from slipstream.services.cli.chat_terminal import Pipe, Terminal  # noqa: PLC0415 - keeps --help quick
    from slipstream.shared.client.loop_thread import LoopThread  # noqa: PLC0415 - keeps --help quick

    quiet_logs()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    history = ChatHistory(sampling.system)
    commands = ChatCommands(history)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not json
    terminal = Terminal(commands.names) if is_terminal else Pipe()
    with LoopThread("slipstream-chat") as loop:
        talk = _Talk(loop, nats, terminal, commands, is_terminal=is_terminal, is_json=json)
        talk.run(history, sampling, timeout)


def _end(number: int, _frame: FrameType | None) -> None:
    # Through all that is under way: an answer that is being given is cancelled.
    raise SystemExit(128 + number)


class _Talk:
    def __init__(
        self,
        loop: "LoopThread",
        nats_url: str,
        terminal: "ChatTerminal",
        commands: "ChatCommands",
        *,
        is_terminal: bool,
        is_json: bool,
    ) -> None:
        self._loop = loop
        self._nats_url = nats_url
        self._terminal = terminal
        self._commands = commands
        self._is_terminal = is_terminal
        self._is_json = is_json
        self._num_interrupts = 0

    def run(self, history: "ChatHistory", sampling: SamplingOptions, timeout_s: float) -> None:
        from slipstream.services.cli.chat_commands import ChatEnded  # noqa: PLC0415 - keeps --help quick
        from slipstream.services.cli.chat_session import ChatSession  # noqa: PLC0415 - keeps --help quick

        connection = connected(self._nats_url, "chat")
        bus = self._loop.run(connection.__aenter__())
        write = _keep_quiet if self._is_json else self._terminal.write
        session = ChatSession(bus, history, sampling, timeout_s, write, self._terminal.notice)
        try:
            self._loop.run(session.look())
            if self._is_terminal:
                self._terminal.notice(_greeting(session))
            while (line := self._next_line()) is not None:
                self._turn(session, line)
        except ChatEnded:
            pass
        finally:
            self._loop.run(connection.__aexit__(None, None, None))

    def _next_line(self) -> str | None:
        while True:
            try:
                line = self._terminal.read()
            except KeyboardInterrupt:
                self._interrupted("\nCtrl-C again, Ctrl-D or /quit leaves")
            else:
                self._num_interrupts = 0
                return line

    def _turn(self, session: "ChatSession", line: str) -> None:
        """Do what a line says. At a terminal the chat outlives what fails."""
        from slipstream.services.cli.chat_session import one_line  # noqa: PLC0415 - keeps --help quick
        from slipstream.services.cli.interruption import WorkCancelledError  # noqa: PLC0415 - keeps --help quick

        try:
            said = self._commands.run(line)
            if said is not None:
                self._terminal.notice(said)
            else:
                self._ask(session, line)
        except WorkCancelledError:
            self._interrupted("\ncancelled, and no part of the chat")
        except SlipstreamError as error:
            if not self._is_terminal:
                raise
            self._terminal.notice(one_line(error))

    def _ask(self, session: "ChatSession", question: str) -> None:
        from slipstream.services.cli.answer_printer import as_json  # noqa: PLC0415 - keeps --help quick
        from slipstream.services.cli.chat_session import figures  # noqa: PLC0415 - keeps --help quick
        from slipstream.services.cli.interruption import run_interruptibly  # noqa: PLC0415 - keeps --help quick

        with answered(self._nats_url):
            answer = run_interruptibly(self._loop, session.ask(question))
        self._terminal.write(f"{as_json(answer)}\n" if self._is_json else "\n")
        if self._is_terminal:
            self._terminal.notice(figures(answer))

    def _interrupted(self, words: str) -> None:
        self._num_interrupts += 1
        if self._num_interrupts >= _LEAVE_AFTER or not self._is_terminal:
            raise typer.Exit(_INTERRUPTED)
        self._terminal.notice(words)


def _greeting(session: "ChatSession") -> str:
    if session.context_length is None:
        return "no worker is known here yet; /help lists the commands, Ctrl-D leaves"
    return (
        f"{session.model}, which takes in {session.context_length:,} tokens; "
        "/help lists the commands, Ctrl-D leaves"
    )


def _keep_quiet(_piece: str) -> None:
    """Show nothing: the whole answer follows as JSON."""
