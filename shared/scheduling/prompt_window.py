"""How much of prompts a worker is given ahead of what it computes. Pure."""

from dataclasses import dataclass, field

from slipstream.shared.ids import RequestId

# A prompt of up to this part of what is given out passes it, as it would inside the worker.
_SHORT_PART = 4


@dataclass
class PromptWindow:
    """
    The prompts that a worker was given and has not computed.

    Just enough that it never waits for the next one: whatever is given out is ordered no more, and
    what comes later can't pass it. Prompts that are much shorter than what is given out have as
    much room of their own: none is hostage to a long one.
    """

    max_num_tokens: int
    _given: dict[RequestId, tuple[int, bool]] = field(default_factory=dict)
    _num_tokens: int = 0
    _num_passing_tokens: int = 0

    def __len__(self) -> int:
        return len(self._given)

    @property
    def num_tokens(self) -> int:
        """Tokens that are given out and not computed."""
        return self._num_tokens + self._num_passing_tokens

    def has_room(self, num_tokens: int) -> bool:
        """Tell whether a prompt of so many tokens to compute may be given out now."""
        return self._num_tokens < self.max_num_tokens or self._may_pass(num_tokens)

    def give(self, request_id: RequestId, num_tokens: int) -> None:
        """Count a prompt as given out."""
        is_passing = self._num_tokens >= self.max_num_tokens
        self._given[request_id] = (num_tokens, is_passing)
        self._count(num_tokens, is_passing=is_passing)

    def done(self, request_id: RequestId) -> bool:
        """Count a prompt as computed, or as given up; False if it was before."""
        given = self._given.pop(request_id, None)
        if given is not None:
            self._count(-given[0], is_passing=given[1])
        return given is not None

    def _may_pass(self, num_tokens: int) -> bool:
        return (
            num_tokens * _SHORT_PART <= self._num_tokens
            and self._num_passing_tokens < self.max_num_tokens
        )

    def _count(self, num_tokens: int, *, is_passing: bool) -> None:
        if is_passing:
            self._num_passing_tokens += num_tokens
        else:
            self._num_tokens += num_tokens
