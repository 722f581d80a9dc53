"""From a client's bytes to an admitted request: decoded, checked, tokenized; or refused by name."""

import secrets
from dataclasses import dataclass

import msgspec
import structlog

from slipstream.services.scheduler.constraints import check_constraint, constraint_of
from slipstream.services.scheduler.salts import salt_of
from slipstream.services.scheduler.validation import (
    check_fields,
    check_token_ids,
    plain_messages,
)
from slipstream.shared.bus.subjects import model_token
from slipstream.shared.config import SchedulerConfig
from slipstream.shared.errors import (
    ContextLengthError,
    InvalidRequestError,
    MessageTooLargeError,
    UnknownModelError,
)
from slipstream.shared.messages.codec import decode_request, unknown_fields
from slipstream.shared.messages.common import LatencyClassName, Route
from slipstream.shared.messages.generate import GenerateRequest
from slipstream.shared.messages.packed import PackedInts
from slipstream.shared.messages.sampling import Constraint, SamplingParameters
from slipstream.shared.messages.submission import MAX_KEY_CHARACTERS
from slipstream.shared.model.config import ModelConfig
from slipstream.shared.model.tokenizer import Tokenizer
from slipstream.shared.scheduling.classes import DEFAULT_CLASS
from slipstream.shared.scheduling.prompt_hashes import PromptHashes

log = structlog.get_logger()

_MAX_NUM_WARNED = 256  # names of unknown fields: nobody may fill the memory, or the log


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """A request that can be served: every field has a value in range."""

    prompt_token_ids: PackedInts
    sampling: SamplingParameters
    is_streamed: bool
    route: Route
    priority: int
    deadline_ms: int
    tenant: str
    cache_salt: str
    allow_other_numerics: bool
    num_bytes: int
    hashes: PromptHashes  # of its prompt; all of its choices have these
    num_choices: int = 1
    latency_class: LatencyClassName = DEFAULT_CLASS
    is_patient: bool = False  # the client itself has set the deadline
    client_request_id: str | None = None  # for logs; never a key
    batch_inbox: str | None = None


class Admission:
    """Owns the tokenizer and the limits; knows nothing of load."""

    def __init__(
        self, config: SchedulerConfig, name: str, model: ModelConfig, tokenizer: Tokenizer
    ) -> None:
        self._config = config
        self._name = name
        self._model = model
        self._tokenizer = tokenizer
        self._warned: set[str] = set()

    def admit(
        self, payload: bytes, subject_model: str | None, *, is_submitted: bool = False
    ) -> AdmittedRequest:
        """Read and finish a request. Raises as both."""
        request = self.read(payload, subject_model, is_submitted=is_submitted)
        return self.finish(request, len(payload))

    def read(
        self, payload: bytes, subject_model: str | None, *, is_submitted: bool = False
    ) -> GenerateRequest:
        """
        Return a request whose fields are in range, its text not looked at yet.

        `subject_model` is the model's token in the subject, if any. Nobody waits for what is
        submitted: without a class of its own it is batch work, and what a class promises does not
        bind it. Raises InvalidRequestError or MessageTooLargeError.
        """
        if len(payload) > self._config.max_request_bytes:
            raise MessageTooLargeError(len(payload), self._config.max_request_bytes, "a request")
        request = decode_request(payload)
        self._warn_of_unknown(payload)
        self._check_model(request.model, subject_model)
        check_fields(
            request,
            self._model.vocab_size,
            self._model.max_context_length,
            is_submitted=is_submitted,
        )
        return self._submitted(request) if is_submitted else request

    def is_slow(self, request: GenerateRequest) -> bool:
        """Tell whether even a short request may take milliseconds to finish: it is compiled."""
        return constraint_of(request) is not None

    def finish(self, request: GenerateRequest, num_bytes: int) -> AdmittedRequest:
        """
        Return the admitted request. Raises InvalidRequestError.

        It tokenizes and compiles, so that with all but short texts it belongs on a thread.
        """
        constraint = self._constraint(request)
        token_ids = self._prompt_token_ids(request)
        salt = salt_of(request, is_isolating=self._config.is_isolating_tenants)
        num_left = self._num_output_room(len(token_ids))
        return AdmittedRequest(
            prompt_token_ids=token_ids,
            sampling=self._sampling(request, num_left, constraint),
            is_streamed=request.stream,
            route=request.route or self._config.route,
            priority=request.priority or 0,
            deadline_ms=self.deadline_ms(request),
            tenant=request.tenant or "",
            cache_salt=salt,
            allow_other_numerics=bool(request.allow_other_numerics),
            num_bytes=num_bytes,
            hashes=PromptHashes(token_ids, salt),
            num_choices=request.n or 1,
            latency_class=request.latency_class or DEFAULT_CLASS,
            is_patient=request.deadline_ms is not None,
            client_request_id=request.client_request_id,
            batch_inbox=request.batch_inbox,
        )

    def _submitted(self, request: GenerateRequest) -> GenerateRequest:
        """Return a submission with the class and the time that it has without its own."""
        deadline_ms = request.deadline_ms
        return msgspec.structs.replace(
            request,
            latency_class=request.latency_class or "batch",
            deadline_ms=self._config.max_deadline_ms if deadline_ms is None else deadline_ms,
        )

    def _warn_of_unknown(self, payload: bytes) -> None:
        """Log each unknown name once: it is ignored, a typo too, but not in silence."""
        for name in unknown_fields(payload):
            if name not in self._warned and len(self._warned) < _MAX_NUM_WARNED:
                self._warned.add(name)
                log.warning("unknown_field_ignored", field=name[:MAX_KEY_CHARACTERS])

    def _check_model(self, asked: str | None, subject_model: str | None) -> None:
        known = (None, self._name)
        if asked not in known or subject_model not in (None, model_token(self._name)):
            wrong = asked if asked not in known else subject_model
            raise UnknownModelError("model", f"{wrong!r} is not served here; {self._name!r} is")

    def _constraint(self, request: GenerateRequest) -> Constraint | None:
        found = constraint_of(request)
        if found is None:
            return None
        if not self._tokenizer.is_byte_level or not self._model.eos_token_ids:
            raise InvalidRequestError(
                found.field,
                f"{self._name} can't be constrained: that takes a byte-level vocabulary and an"
                " end-of-sequence token; leave it out",
            )
        check_constraint(found)
        return found.constraint

    def _prompt_token_ids(self, request: GenerateRequest) -> PackedInts:
        if request.prompt_token_ids is not None:
            check_token_ids("prompt_token_ids", request.prompt_token_ids, self._model.vocab_size)
            return request.prompt_token_ids
        if request.messages is not None:
            return PackedInts(self._tokenizer.encode_chat(plain_messages(request.messages)))
        token_ids = self._tokenizer.encode(request.prompt or "")
        if not token_ids:
            raise InvalidRequestError("prompt", "is empty; at least one token is needed")
        return PackedInts(token_ids)

    def _num_output_room(self, num_prompt_tokens: int) -> int:
        """Return how many tokens fit behind the prompt; never cut a prompt in silence."""
        context = self._model.max_context_length
        if num_prompt_tokens >= context:
            raise ContextLengthError(
                "prompt",
                f"{num_prompt_tokens} tokens leave no room in the context of {context} tokens",
                limit=context - 1,
            )
        return context - num_prompt_tokens

    def _sampling(
        self, request: GenerateRequest, num_left: int, constraint: Constraint | None
    ) -> SamplingParameters:
        model = self._model
        stop = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
        max_tokens = min(request.max_tokens or self._config.default_max_tokens, num_left)
        top_k = request.top_k if request.top_k is not None else model.top_k
        return SamplingParameters(
            seed=request.seed if request.seed is not None else secrets.randbits(63),
            temperature=_or(request.temperature, model.temperature),
            top_p=_or(request.top_p, model.top_p),
            top_k=max(0, top_k),
            min_p=_or(request.min_p, 0.0),
            repetition_penalty=_or(request.repetition_penalty, 1.0),
            presence_penalty=_or(request.presence_penalty, 0.0),
            frequency_penalty=_or(request.frequency_penalty, 0.0),
            logit_bias={int(key): value for key, value in (request.logit_bias or {}).items()},
            min_tokens=min(request.min_tokens or 0, max_tokens),
            max_tokens=max_tokens,
            ignore_eos=bool(request.ignore_eos),
            stop=stop,
            stop_token_ids=tuple(request.stop_token_ids or ()),
            num_logprobs=_num_logprobs(request),
            echo=bool(request.echo),
            num_prompt_logprobs=_num_prompt_logprobs(request),
            skip_special_tokens=request.skip_special_tokens is not False,
            num_speculative_tokens=(
                0 if request.speculation == "off" else request.num_speculative_tokens
            ),
            speculation_mode="rejection" if request.speculation_mode == "rejection" else "exact",
            constraint=constraint,
        )

    def deadline_ms(self, request: GenerateRequest) -> int:
        """Return how long a request may take in all. Raises InvalidRequestError."""
        asked, limit = request.deadline_ms, self._config.max_deadline_ms
        if asked is None:
            # Else batch work would be out of time long before its class wants its first token.
            is_batch = request.latency_class == "batch"
            return limit if is_batch else self._config.default_deadline_ms
        if not 1 <= asked <= limit:
            raise InvalidRequestError(
                "deadline_ms", f"{asked} is out of range; it must lie in [1, {limit}]", limit=limit
            )
        return asked


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _num_logprobs(request: GenerateRequest) -> int | None:
    if request.logprobs is None or request.logprobs is False:
        return None
    if request.logprobs is True:
        return request.top_logprobs or 0
    return max(request.logprobs, request.top_logprobs or 0)


def _num_prompt_logprobs(request: GenerateRequest) -> int | None:
    """An echoed prompt has logprobs as the output has, unless it is said otherwise."""
    if request.prompt_logprobs is not None or not request.echo:
        return request.prompt_logprobs
    return _num_logprobs(request)
