"""How long things take: steps, as weighted sums of what is in them, and what lies between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.shared.worker.step_cost import Priors, Prompts, Streams


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """
    Seconds of a step by its rows and by what they attend to.

    A step of prompts alone has a fixed part of its own: it is bound by what it computes, where one
    of streams is bound by reading the weights.
    """

    step_s: float  # with streams in it
    stream_row_s: float
    stream_context_s: float  # for each token of context that a stream's row attends to
    prompt_step_s: float  # without streams
    prompt_row_s: float
    prompt_pair_s: float = 0.0  # (row, position that it attends to)
    prompt_context_s: float = 0.0  # for each token of context, however many rows attend to it

    @classmethod
    def fitted(cls, of_streams: Sequence[float], of_prompts: Sequence[float]) -> "StepTimes":
        """Return times by the weights of two fits: a step, a row, and what the rows attend to."""
        step_s, stream_row_s, stream_context_s = of_streams
        prompt_step_s, prompt_row_s, prompt_pair_s = of_prompts
        return cls(
            step_s=step_s,
            stream_row_s=stream_row_s,
            stream_context_s=stream_context_s,
            prompt_step_s=prompt_step_s,
            prompt_row_s=prompt_row_s,
            prompt_pair_s=prompt_pair_s,
        )

    def of_streams(self, streams: Streams) -> float:
        """Return how long a step of streams alone lasts."""
        return (
            self.step_s
            + self.stream_row_s * streams.num_rows
            + self.stream_context_s * streams.num_context_tokens
        )

    def of_step(self, streams: Streams, prompts: Prompts, num_prompt_context: int) -> float:
        """Return how long a step lasts; the context of prompts counts as it is after the step."""
        fixed_s = self.of_streams(streams) if streams.num_rows else self.prompt_step_s
        return (
            fixed_s
            + self.prompt_row_s * prompts.num_rows
            + self.prompt_pair_s * prompts.num_pairs
            + self.prompt_context_s * num_prompt_context
        )

    def priors(self) -> Priors:
        """
        Return what a worker knows before its first step: all of streams, and nothing of prompts.

        Of prompts it learns step by step, as live ones do, and what it takes for the fixed part of
        a step depends on which it has seen. Of streams that takes many steps, which aren't done
        one by one here; live workers have long done them.
        """
        return Priors(streams=(self.step_s, self.stream_row_s, self.stream_context_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Seconds of everything that is no step. The defaults are those of processes on one machine."""

    admit_s: float = 0.001  # from the client into the queue
    dispatch_s: float = 0.001  # from the scheduler to a worker
    lease_s: float = 0.001  # until a prompt whose turn it is has its blocks
    # From the end of a prompt's last step to its first token at the client, through its new worker.
    hand_over_s: float = 0.003
    pull_token_s: float = 1e-5  # for each token of KV that comes from another host
    answer_s: float = 0.0005  # from the end of a step to the client
    report_s: float = 0.001  # until the scheduler knows what changed on a worker
    step_gap_s: float = 0.0005  # between two steps
    row_gap_s: float = 0.0  # for each stream in the step before


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """All that a simulation knows about time."""

    steps: StepTimes
    delays: Delays = Delays()
    # The parts by which a step lasts longer for each other worker that computes on its host.
    decode_slowdown: float = 0.0
    prefill_slowdown: float = 0.0

    @property
    def are_cores_shared(self) -> bool:
        """Workers of a host are in each other's way."""
        return self.decode_slowdown > 0 or self.prefill_slowdown > 0


def fake_steps(step_ms: float, row_us: float, context_token_ns: float) -> StepTimes:
    """Return what the fake engine is told: see `FakeCosts`."""
    step_s, row_s, token_s = step_ms * 1e-3, row_us * 1e-6, context_token_ns * 1e-9
    return StepTimes(
        step_s=step_s,
        stream_row_s=row_s,
        stream_context_s=token_s,
        prompt_step_s=step_s,
        prompt_row_s=row_s,
        prompt_context_s=token_s,
    )
