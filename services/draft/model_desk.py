"""Answers a draft worker's messages with a model, on a thread of its own."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from slipstream.services.draft.model_proposer import ModelProposer
from slipstream.shared.config import DraftConfig
from slipstream.shared.drafting.opening import open_drafter
from slipstream.shared.messages.draft import DraftClose, DraftJob, DraftOpen, DraftTokens
from slipstream.shared.model.vocabulary import tokenizer_fingerprint
from slipstream.shared.worker.model_source import open_model

T = TypeVar("T")


class ModelDesk:
    """Runs a model on one thread, prompts in pieces between the rounds of proposals."""

    def __init__(self, proposer: ModelProposer, *, is_drafting_ahead: bool) -> None:
        self._proposer = proposer
        self._is_drafting_ahead = is_drafting_ahead
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draft")
        self._catching_up: asyncio.Task[None] | None = None
        self._ahead: asyncio.Task[None] | None = None

    @property
    def num_sequences(self) -> int:
        """Sequences known."""
        return self._proposer.num_sequences

    async def open(self, message: DraftOpen) -> None:
        """Begin with a sequence, whose prompt is computed while nothing else is asked for."""
        self._proposer.check(message)
        await self._run(partial(self._proposer.open, message))
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.create_task(self._catch_up())

    async def close(self, message: DraftClose) -> None:
        """Forget a sequence."""
        await self._run(partial(self._proposer.close, message))

    async def propose(self, job: DraftJob) -> DraftTokens:
        """Answer every want."""
        answer = await self._run(partial(self._proposer.propose, job))
        if self._is_drafting_ahead:
            self._ahead = asyncio.create_task(self._run(partial(self._proposer.draft_ahead, job)))
        return answer

    async def shut(self) -> None:
        """Let the running round finish, and let go of the model."""
        for task in (self._catching_up, self._ahead):
            if task is not None:
                task.cancel()
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)
        self._proposer.shut()

    async def _catch_up(self) -> None:
        # One piece at a time: a proposal that is asked for meanwhile comes in between.
        while await self._run(self._proposer.catch_up):
            pass

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def open_model_desk(config: DraftConfig) -> ModelDesk:
    """Find the target, and open what drafts for it. Raises ModelError, ConfigurationError."""
    target = open_model(config)
    proposer = ModelProposer(
        open_drafter(target, config),
        config.draft_model or target.name,
        tokenizer_fingerprint(target.directory),
        config.max_num_sequences,
    )
    return ModelDesk(proposer, is_drafting_ahead=config.is_drafting_ahead)
