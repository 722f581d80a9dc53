"""One frozen configuration a process: read once by the command line, checked here, passed down."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slipstream.shared.config_checks import check_hash_bits, check_range, is_every_address
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.kv.block_hash import NUM_BITS
from slipstream.shared.messages.common import Route
from slipstream.shared.nats_config import NatsConfig
from slipstream.shared.scheduling.prompt_window import WINDOW_TOKENS
from slipstream.shared.scheduling.queue import Policy
from slipstream.shared.tls import HttpTlsFiles, TransferTlsFiles
from slipstream.shared.worker.ngram import MAX_NGRAM, MIN_NGRAM

Engine = Literal["auto", "native", "torch", "fake"]
WeightFormat = Literal["float32", "bf16", "int8", "int4"]
KvFormat = Literal["float32", "bf16", "int8"]
# `auto` is settled when the model is known: see shared/model/formats.py.
WeightChoice = Literal["auto", "float32", "bf16", "int8", "int4"]
KvChoice = Literal["auto", "float32", "bf16", "int8"]
Speculation = Literal["off", "ngram"]
DraftPlace = Literal["decode", "draft"]
# n-grams looked up, another model, layers of the target; or n-grams and layers, by what is right.
DraftKind = Literal["ngram", "model", "layers", "auto"]
Eviction = Literal["lru", "filtered"]

MIB = 1024 * 1024
_PLANES = {"tcp", "nats"}
_MAX_PORT = 65_535
_YEAR_S = 366 * 86_400
_UNLIMITED_TOKENS = 1_000_000_000
DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, kw_only=True)
class FakeEngineConfig:
    """Cost model of the fake engine: the time of a step is the sum of the three."""

    step_ms: float = 1.0
    row_us: float = 20.0
    context_token_ns: float = 20.0


@dataclass(frozen=True, kw_only=True)
class ServiceConfig(NatsConfig):
    """What every service needs."""

    model: str = DEFAULT_MODEL
    cache_dir: Path
    engine: Engine = "auto"  # native where the kernels were built, else torch
    weight_format: WeightChoice = "auto"
    kv_format: KvChoice = "auto"
    fake: FakeEngineConfig = FakeEngineConfig()
    is_test_mode: bool = False  # allows what must never be a default: the fake engine
    # For `slipstream bench ablation`: every query head has keys and values of its own.
    is_sharing_heads: bool = True
    status_file: Path | None = None  # state and heartbeat, for health checks and the supervisor
    log_level: str = "info"
    is_log_json: bool | None = None  # None: JSON unless the stream is a terminal
    drain_s: float = 3.0  # what a stop waits for running work
    metrics_port: int | None = None  # None: no metrics; 0: a free port
    metrics_host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.engine == "fake" and not self.is_test_mode:
            raise ConfigurationError("--engine fake gives made-up tokens: it needs --test-mode")
        if not self.is_sharing_heads:
            self._check_measured("share_heads", engines=("auto", "native"))
        formats = {self.weight_format, self.kv_format}
        if self.engine == "torch" and not formats <= {"auto", "float32"}:
            raise ConfigurationError(
                "--engine torch works in float32 only; leave --format and --kv-format out, "
                "or take the native engine"
            )
        check_range("drain_s", self.drain_s, 0, 3600)
        if self.metrics_port is not None:
            check_range("metrics_port", self.metrics_port, 0, 65_535)

    def _check_measured(self, name: str, engines: tuple[str, ...] | None = None) -> None:
        """Let benchmarks alone do without a layer. Raises ConfigurationError."""
        option = f"--no-{name.replace('_', '-')}"
        if not self.is_test_mode:
            raise ConfigurationError(
                f"{option} costs speed and gains nothing: it is there to be measured, and needs "
                "--test-mode"
            )
        if engines is not None and self.engine not in engines:
            raise ConfigurationError(
                f"{option} is for --engine {' or '.join(engines)}, not for {self.engine}"
            )


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(ServiceConfig):
    """Admission, queue and placement."""

    route: Route = "auto"
    max_num_waiting: int = 1024
    max_waiting_bytes: int = 256 * MIB
    max_request_bytes: int = 1 * MIB
    default_max_tokens: int = 256
    default_deadline_ms: int = 300_000
    max_deadline_ms: int = 3_600_000
    max_num_attempts: int = 3
    # `auto` prefills on the decode worker below this many uncached tokens.
    min_num_remote_tokens: int = 64
    policy: Policy = "priority"  # who of those waiting is next
    is_isolating_tenants: bool = True  # nobody finds, and so learns of, another tenant's prompts
    tenant_weights: str = ""  # shares under `fair`: name=weight,name=weight; others weigh 1
    # Seats of each decode worker that only interactive requests take, while there are any.
    num_reserved_seats: int = 2
    # Tokens of prompts that a worker is given ahead of computing them.
    prompt_window: int = WINDOW_TOKENS
    # Submissions (docs/operations.md): those in this scheduler's hands at once; 0: none are taken.
    max_num_submissions: int = 64
    # Times that one is taken before it ends as a dead letter. A scheduler that dies costs one all
    # that it had in hand, whoever was to blame: of 10, a storm of kills lost one job in forty.
    max_num_deliveries: int = 30
    max_submission_age_s: float = 86_400.0  # how long one may wait before it is started
    redelivery_s: float = 30.0  # silence of a scheduler after which another one takes over
    max_num_queued: int = 100_000
    max_queued_bytes: int = 64 * MIB
    result_keep_s: float = 86_400.0  # how long a result can be fetched: a promise
    max_result_bytes: int = 128 * MIB
    dead_keep_s: float = 604_800.0
    max_dead_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.weights_of_tenants
        check_range("num_reserved_seats", self.num_reserved_seats, 0, 4096)
        check_range("prompt_window", self.prompt_window, 1, 1_000_000)
        check_range("max_num_waiting", self.max_num_waiting, 1, 1_000_000)
        check_range("default_max_tokens", self.default_max_tokens, 1, 1_000_000)
        check_range("default_deadline_ms", self.default_deadline_ms, 1, self.max_deadline_ms)
        self._check_submissions()

    def _check_submissions(self) -> None:
        check_range("max_num_submissions", self.max_num_submissions, 0, 4096)
        check_range("max_num_deliveries", self.max_num_deliveries, 1, 1_000_000)
        check_range("max_submission_age_s", self.max_submission_age_s, 1, _YEAR_S)
        check_range("redelivery_s", self.redelivery_s, 0.5, 3600)
        check_range("max_num_queued", self.max_num_queued, 1, 1_000_000_000)
        check_range("max_queued_bytes", self.max_queued_bytes, self.max_request_bytes, 2**50)
        check_range("result_keep_s", self.result_keep_s, 1, _YEAR_S)
        check_range("max_result_bytes", self.max_result_bytes, MIB, 2**50)
        check_range("dead_keep_s", self.dead_keep_s, 1, _YEAR_S)
        check_range("max_dead_bytes", self.max_dead_bytes, self.max_request_bytes, 2**50)

    @property
    def weights_of_tenants(self) -> Mapping[str, float]:
        """The share of each tenant that is named. Raises ConfigurationError."""
        weights = {}
        for each in filter(None, (part.strip() for part in self.tenant_weights.split(","))):
            name, _, text = each.partition("=")
            try:
                weight = float(text)
            except ValueError:
                weight = math.nan
            if not name or not 0 < weight < math.inf:
                raise ConfigurationError(
                    f"--tenant-weights has {each!r}; it must be NAME=WEIGHT, the weight above 0"
                )
            weights[name] = weight
        return weights


@dataclass(frozen=True, kw_only=True)
class GatewayConfig(ServiceConfig, HttpTlsFiles):
    """The HTTP gateway: what it takes from clients, and how long it waits for them."""

    http_host: str = "127.0.0.1"
    http_port: int = 8000  # 0: a free one
    api_keys: Path | None = None  # a file of lines `KEY TENANT`; without keys anybody may ask
    api_key_list: str = ""  # the same with commas between, for an environment that has no files
    max_body_bytes: int = 4 * MIB
    max_num_streams: int = 4096  # requests that are being answered
    request_timeout_s: float = 3_660.0  # a little more than the longest deadline
    body_timeout_s: float = 30.0  # what a client may take to send its request
    stall_timeout_s: float = 30.0  # what a client may take to read a piece of its answer
    lost_timeout_s: float = 30.0  # silence of the services after which a request is given up
    stream_buffer_bytes: int = 256 * 1024  # that wait for a slow reader, of each stream

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_tls()
        check_range("http_port", self.http_port, 0, _MAX_PORT)
        check_range("max_body_bytes", self.max_body_bytes, 1024, 2**30)
        check_range("max_num_streams", self.max_num_streams, 1, 1_000_000)
        check_range("request_timeout_s", self.request_timeout_s, 0.1, 86_400)
        check_range("body_timeout_s", self.body_timeout_s, 0.1, 3600)
        check_range("stall_timeout_s", self.stall_timeout_s, 0.1, 3600)
        check_range("lost_timeout_s", self.lost_timeout_s, 3, 3600)
        check_range("stream_buffer_bytes", self.stream_buffer_bytes, 1024, 2**30)


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(ServiceConfig):
    """A worker that maps the arena and runs the model."""

    arena_dir: Path
    # Most threads of a step; 0: as many as there are cores free, or 1 with the plain engine.
    num_threads: int = 0
    # Borrow an idle neighbour's core for a step, and lend the own one; else all threads, always.
    is_sharing_cores: bool = True
    isa: str | None = None  # force a level of the native kernels: amx, avx512, avx2, portable
    num_seats: int = 34  # those for interactive requests (the scheduler's reserve) among them
    token_budget: int = 512  # rows of prompt a step may take
    # And so long may a step of prompts last: what a newcomer waits for its first chunk.
    prompt_step_ms: float = 50.0
    nan_token_id: int | None = None  # in tests only: logits behind this token are no numbers
    abort_token_id: int | None = None  # in tests only: the process dies in a step with this token
    # For `slipstream bench ablation`: op by op through memory, and a whole context a lease.
    is_fused: bool = True
    is_paging: bool = True

    @property
    def max_num_prompt_tokens(self) -> int:
        """Tokens of prompts that may hold KV blocks before they are computed: a step's worth."""
        return self.token_budget

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nan_token_id is not None and not self.is_test_mode:
            raise ConfigurationError("--nan-token-id spoils answers: it needs --test-mode")
        if self.abort_token_id is not None and not self.is_test_mode:
            raise ConfigurationError("--abort-token-id ends workers: it needs --test-mode")
        if not self.is_fused:
            self._check_measured("fused", engines=("auto", "native"))
        if not self.is_paging:
            self._check_measured("paging")
        check_range("num_threads", self.num_threads, 0, 1024)
        check_range("num_seats", self.num_seats, 1, 4096)
        check_range("token_budget", self.token_budget, 1, 65_536)
        check_range("prompt_step_ms", self.prompt_step_ms, 1, 60_000)


@dataclass(frozen=True, kw_only=True)
class PrefillConfig(WorkerConfig):
    """The prefill worker."""

    num_seats: int = 64


@dataclass(frozen=True, kw_only=True)
class DraftSourceConfig(ServiceConfig):
    """Where drafts come from, for whoever makes them."""

    draft_kind: DraftKind = "ngram"
    # A model with the target's tokenizer; or a file of slipstream draft train, "": the shipped one.
    draft_model: str = ""
    draft_memory_mib: int = 256  # of the draft's own KV; who asked longest ago loses its first

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("draft_memory_mib", self.draft_memory_mib, 1, 1_000_000)
        if self.draft_kind == "model" and not self.draft_model:
            raise ConfigurationError(
                "--draft-kind model needs --draft-model: a name or directory of a model with the "
                "target's tokenizer"
            )


@dataclass(frozen=True, kw_only=True)
class DecodeConfig(WorkerConfig, DraftSourceConfig):
    """The decode worker."""

    speculation: Speculation = "ngram"
    # Who looks n-grams up: the decode worker itself, or a draft worker, a message away.
    draft_place: DraftPlace = "decode"
    max_num_draft_tokens: int = 15  # at most: how many pay is found out
    draft_budget_ms: float = 4.0  # longest wait for a draft worker's proposals in a step
    num_granted_blocks: int = 16  # held ahead of need
    # A step with prompts in it lasts at most so many times what its streams alone would take.
    step_stretch: float = 2.3
    stream_keep_s: float = 60.0  # how long an ended stream can be resumed
    # For `slipstream bench ablation`: a batch ends before the next begins, a prompt is one step.
    is_batching_continuously: bool = True
    is_chunking_prompts: bool = True

    @property
    def max_num_prompt_tokens(self) -> int:
        """Without chunks, or a batch that can be joined, all prompts are there, and whole."""
        is_usual = self.is_batching_continuously and self.is_chunking_prompts
        return self.token_budget if is_usual else _UNLIMITED_TOKENS

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.is_batching_continuously:
            self._check_measured("continuous_batching")
        if not self.is_chunking_prompts:
            self._check_measured("chunked_prefill")
        check_range("max_num_draft_tokens", self.max_num_draft_tokens, 0, 64)
        check_range("draft_budget_ms", self.draft_budget_ms, 0, 1000)
        check_range("num_granted_blocks", self.num_granted_blocks, 1, 4096)
        check_range("step_stretch", self.step_stretch, 1.1, 100)


@dataclass(frozen=True, kw_only=True)
class DraftConfig(DraftSourceConfig):
    """The draft worker."""

    # Threads of a model's steps, 0: one a core. Without a core of its own a second one only waits.
    num_threads: int = 1
    isa: str | None = None  # as for workers
    # Go on drafting while the target verifies: gains where there are cores that it doesn't use.
    is_drafting_ahead: bool = False
    # One that asks can't tell what was found behind a single token, which is seldom right.
    min_ngram: int = MIN_NGRAM + 1
    max_ngram: int = MAX_NGRAM
    max_num_sequences: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("num_threads", self.num_threads, 0, 1024)
        check_range("max_ngram", self.max_ngram, self.min_ngram, 16)


@dataclass(frozen=True, kw_only=True)
class KvConfig(ServiceConfig, TransferTlsFiles):
    """The KV manager of a host."""

    arena_dir: Path
    memory_bytes: int = 1024 * MIB
    num_blocks: int | None = None  # instead of memory_bytes; a handful is legal in tests
    lease_ms: int = 30_000
    is_prefix_cache_on: bool = True
    spill_bytes: int = 0  # of evicted blocks kept in a file; 0: none
    spill_dir: Path | None = None
    # How blocks travel to and from other hosts, the preferred first: tcp, nats; empty: not at all.
    transfer_planes: str = "tcp"
    transfer_listen: str = "127.0.0.1:0"  # host:port; port 0 is any free one
    transfer_advertise: str | None = None  # where others reach it, if not where it listens
    eviction: Eviction = "filtered"  # lru: a flood of prompts asked once drives out all others
    block_hash_bits: int = NUM_BITS  # fewer in tests only: collisions, or a constant with 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_hash_bits(self.block_hash_bits, is_test_mode=self.is_test_mode)
        check_range("lease_ms", self.lease_ms, 100, 600_000)
        check_range("spill_bytes", self.spill_bytes, 0, 2**50)
        if self.spill_bytes and self.spill_dir is None:
            raise ConfigurationError(
                "--spill-bytes needs --spill-dir: a directory on a disk, not in memory"
            )
        self._check_tls()
        self._check_transfer()
        if self.num_blocks is not None:
            check_range("num_blocks", self.num_blocks, 2, 2**31)

    @property
    def planes(self) -> tuple[str, ...]:
        """The transfer planes to serve and to use, the preferred first."""
        return tuple(each.strip() for each in self.transfer_planes.split(",") if each.strip())

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port on which blocks are served over TCP."""
        host, _, port = self.transfer_listen.rpartition(":")
        return host.strip("[]"), int(port)

    def _check_transfer(self) -> None:
        unknown = sorted(set(self.planes) - _PLANES)
        if unknown:
            raise ConfigurationError(
                f"--transfer-planes names {unknown}; it is a list of {sorted(_PLANES)}"
            )
        host, _, port = self.transfer_listen.rpartition(":")
        if not host or not port.isdecimal() or int(port) > _MAX_PORT:
            raise ConfigurationError(
                f"--transfer-listen is {self.transfer_listen!r}; it must be HOST:PORT"
            )
        is_advertised = self.transfer_advertise is not None
        if "tcp" in self.planes and is_every_address(host.strip("[]")) and not is_advertised:
            raise ConfigurationError(
                f"--transfer-listen {self.transfer_listen} is no address that other hosts can "
                "reach: name one with --transfer-advertise HOST:PORT"
            )
