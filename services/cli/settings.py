"""What a service can be told: every field of its configuration, its options, its variable."""

import dataclasses
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from slipstream.services.cli.console import resolve_cache_dir
from slipstream.services.cli.sizes import parse_size
from slipstream.shared.config import FakeEngineConfig, ServiceConfig

ConfigT = TypeVar("ConfigT", bound=ServiceConfig)
PREFIX = "SLIPSTREAM_"
PARENT = "parent_pid"


@dataclass(frozen=True)
class Setting:
    """How a field is called outside, and what it means."""

    help: str
    name: str | None = None  # of option and variable; else the field's own
    option: str | None = None  # where the option differs from the name


SETTINGS = {
    "nats_url": Setting("NATS server.", option="nats"),
    "nats_nkey": Setting("File with our key's seed, of `slipstream keys init` (default: none)."),
    "nats_ca": Setting("File with the authority of the server's certificate, for TLS."),
    "nats_cert": Setting("File with our own certificate, where the server wants one."),
    "nats_key": Setting("File with its key."),
    "model": Setting("Name, Hugging Face directory, GGUF file or hub id."),
    "cache_dir": Setting("Where models are kept (default: ~/.cache/slipstream)."),
    "engine": Setting("Forward pass: auto, native, torch, or fake (needs --test-mode)."),
    "weight_format": Setting(
        "Format of the weights: auto, float32, bf16, int8 or int4.", name="format"
    ),
    "kv_format": Setting("Format of the KV cache: auto, float32, bf16 or int8."),
    "is_test_mode": Setting("Allow what must never be a default.", name="test_mode"),
    "status_file": Setting("Where state and heartbeat are written, for health checks."),
    "log_level": Setting("debug, info, warning or error."),
    "is_log_json": Setting("JSON logs (default: unless on a terminal).", name="log_json"),
    "drain_s": Setting("Seconds that a stop waits for running work."),
    "metrics_port": Setting("Serve Prometheus metrics on this port; 0: a free one (default: off)."),
    "metrics_host": Setting("Address on which metrics are served; 0.0.0.0 in a container."),
    "route": Setting("Where prefill runs: remote, local, or auto."),
    "max_num_waiting": Setting("Requests that may wait before new ones are refused."),
    "max_waiting_bytes": Setting("Bytes of requests that may wait."),
    "max_request_bytes": Setting("Largest request in bytes."),
    "default_max_tokens": Setting("max_tokens of requests that name none."),
    "default_deadline_ms": Setting("Deadline of requests that name none."),
    "max_deadline_ms": Setting("Longest deadline a request may ask for."),
    "max_num_attempts": Setting("Attempts at a request before it fails."),
    "min_num_remote_tokens": Setting("Uncached tokens below which auto prefills on decode."),
    "policy": Setting("Who is next: priority, fcfs, sjf, deadline, or fair (between tenants)."),
    "tenant_weights": Setting("Shares under fair: NAME=WEIGHT,NAME=WEIGHT; others weigh 1."),
    "is_isolating_tenants": Setting(
        "Tenants find cached prefixes of their own only.", name="isolate_tenants"
    ),
    "num_reserved_seats": Setting("Seats of a decode worker kept for interactive requests."),
    "prompt_window": Setting("Tokens of prompts given to a worker ahead of its computing them."),
    "max_num_submissions": Setting("Submissions served at once; 0: none are taken."),
    "max_num_deliveries": Setting("Times that a submission is taken before it is given up."),
    "max_submission_age_s": Setting("Seconds that a submission may wait."),
    "redelivery_s": Setting("Seconds of silence after which another scheduler takes over."),
    "max_num_queued": Setting("Submissions that may wait in the stream."),
    "max_queued_bytes": Setting("Bytes of submissions that may wait in the stream."),
    "result_keep_s": Setting("Seconds for which the result of a submission is kept."),
    "max_result_bytes": Setting("Bytes of results that may be kept."),
    "dead_keep_s": Setting("Seconds for which dead letters are kept."),
    "max_dead_bytes": Setting("Bytes of dead letters that may be kept."),
    "http_host": Setting("Address on which HTTP is served; 0.0.0.0 in a container."),
    "http_port": Setting("Port on which HTTP is served; 0: a free one."),
    "tls_cert": Setting("Certificate (PEM) with which HTTPS is served (default: HTTP)."),
    "tls_key": Setting("Its private key (PEM, without a password)."),
    "api_keys": Setting("File with a line KEY TENANT for each key (default: no key is needed)."),
    "api_key_list": Setting("KEY TENANT,KEY TENANT: better in the variable than in an argument."),
    "max_body_bytes": Setting("Largest body of an HTTP request."),
    "max_num_streams": Setting("HTTP requests answered at once."),
    "request_timeout_s": Setting("Longest time of an HTTP request that names no deadline."),
    "body_timeout_s": Setting("Seconds that a client may take to send its request."),
    "stall_timeout_s": Setting("Seconds without reading after which a client is cut off."),
    "lost_timeout_s": Setting("Seconds of silence after which a request is given up."),
    "stream_buffer_bytes": Setting("Bytes of a stream that wait for its reader, at most."),
    "arena_dir": Setting("The KV manager's arena and socket, shared by its workers."),
    "isa": Setting("Level of the native kernels: amx, avx512, avx2, portable."),
    "num_threads": Setting("Most threads of a step (0: every core that is free).", name="threads"),
    "is_sharing_cores": Setting("Share cores with the host's other workers.", name="share_cores"),
    "num_seats": Setting("Sequences held at once.", name="seats"),
    "token_budget": Setting("Rows of prompt a step may take."),
    "is_sharing_heads": Setting(
        "Query heads share KV heads as the model has it; without needs --test-mode.",
        name="share_heads",
    ),
    "is_fused": Setting(
        "All operations of a step in one pass; without needs --test-mode.", name="fused"
    ),
    "is_paging": Setting(
        "KV blocks as they are needed, not a whole context at once; without needs --test-mode.",
        name="paging",
    ),
    "is_batching_continuously": Setting(
        "Sequences join and leave between steps; without needs --test-mode.",
        name="continuous_batching",
    ),
    "is_chunking_prompts": Setting(
        "Long prompts take several steps; without needs --test-mode.", name="chunked_prefill"
    ),
    "nan_token_id": Setting("Spoil the logits behind this token; needs --test-mode."),
    "abort_token_id": Setting("Die in a step with this token; needs --test-mode."),
    "prompt_step_ms": Setting("Longest step of prompts alone: what a newcomer waits."),
    "step_stretch": Setting("Longest step with prompts, in steps of its streams alone."),
    "speculation": Setting("ngram, or off."),
    "draft_place": Setting("Who makes drafts: decode (the worker itself), or a draft worker."),
    "draft_kind": Setting("ngram, model, layers (of the target), or auto: n-grams and layers."),
    "draft_model": Setting("A model to draft with, or a file of draft train (default: shipped)."),
    "is_drafting_ahead": Setting(
        "Go on drafting while the target verifies, on cores of its own.", name="draft_ahead"
    ),
    "draft_memory_mib": Setting("Memory of a drafting model's own KV, in MiB."),
    "max_num_draft_tokens": Setting("Most draft tokens of a sequence in a step."),
    "draft_budget_ms": Setting("Longest wait for a draft worker in a step."),
    "num_granted_blocks": Setting("KV blocks held ahead of need."),
    "stream_keep_s": Setting("Seconds for which an ended stream can be resumed."),
    "min_ngram": Setting("Shortest match that proposes."),
    "max_ngram": Setting("Longest match that is looked for."),
    "max_num_sequences": Setting("Sequences that are followed at once."),
    "memory_bytes": Setting(
        "Memory of the KV cache: 512MiB, 2GiB, or 45% of the file system it lies on.",
        name="kv_memory",
    ),
    "num_blocks": Setting("KV blocks, instead of --kv-memory.", name="kv_blocks"),
    "lease_ms": Setting("How long a lease lasts unless it is renewed."),
    "is_prefix_cache_on": Setting(
        "Keep the KV of ended requests for those that begin alike.", name="prefix_cache"
    ),
    "eviction": Setting("What goes when room is wanted: filtered (asked for once first), or lru."),
    "spill_bytes": Setting("Keep evicted KV in a file of this size (20GiB); 0: don't."),
    "spill_dir": Setting("Where that file lies: a directory on a disk."),
    "transfer_planes": Setting("How KV travels between hosts: tcp, nats, both (best first)."),
    "transfer_listen": Setting("HOST:PORT on which KV is given to other hosts over TCP."),
    "transfer_advertise": Setting("HOST:PORT where they reach it, if that is another one."),
    "transfer_tls_cert": Setting("Certificate (PEM) that other KV managers are shown over TCP."),
    "transfer_tls_key": Setting("Its private key (PEM, without a password)."),
    "transfer_tls_ca": Setting("Authority (PEM) that signs KV managers, and nobody else."),
    "block_hash_bits": Setting("Bits of a block's hash; fewer than 128 need --test-mode."),
    "fake_step_ms": Setting("Fake engine: time of a step."),
    "fake_row_us": Setting("Fake engine: time of a row."),
    "fake_context_token_ns": Setting("Fake engine: time of a token of context."),
}

_FAKE = "fake_"
# Fields that are sizes, and those that say where: a size may be a share of the file system there.
_SIZES = {"memory_bytes": "arena_dir", "spill_bytes": "spill_dir"}


@dataclass(frozen=True)
class Option:
    """A field of a configuration as it is given from outside."""

    name: str  # of the field
    hint: Any  # Any: its type
    default: Any  # MISSING where it must be given

    @property
    def is_flag(self) -> bool:
        """Whether it is a yes or a no."""
        return self.hint in (bool, bool | None)

    @property
    def flags(self) -> tuple[str, ...]:
        """Its names on the command line; that of a yes has its no beside it."""
        setting = SETTINGS[self.name]
        flag = (setting.option or setting.name or self.name).replace("_", "-")
        if self.is_flag:
            return (f"--{flag}", f"--no-{flag}")
        # Errors of the configuration name the field, so its own name works too.
        own_flag = self.name.replace("_", "-")
        return tuple(dict.fromkeys((f"--{flag}", f"--{own_flag}")))


def variable_of(field_name: str) -> str:
    """Return the environment variable of a field."""
    return PREFIX + (SETTINGS[field_name].name or field_name).upper()


def options_of(config_class: type[ServiceConfig]) -> list[Option]:
    """Return one option a field."""
    hints = typing.get_type_hints(config_class)
    found: list[Option] = []
    for field in dataclasses.fields(config_class):
        if field.name == "fake":
            found += [
                Option(f"{_FAKE}{inner.name}", float, inner.default)
                for inner in dataclasses.fields(FakeEngineConfig)
            ]
        elif field.name in _SIZES:
            found.append(Option(field.name, str, _mebibytes(field.default)))
        elif field.name == "cache_dir":
            # The default is looked up when it is needed: it depends on the user.
            found.append(Option(field.name, Path | None, None))
        else:
            found.append(Option(field.name, hints[field.name], field.default))
    return found


def build(config_class: type[ConfigT], values: dict[str, Any]) -> ConfigT:
    """Return the configuration of all option values. Any: values of every type."""
    fake = {
        name.removeprefix(_FAKE): values.pop(name)
        for name in list(values)
        if name.startswith(_FAKE)
    }
    values["cache_dir"] = resolve_cache_dir(values["cache_dir"])
    for name, place in _SIZES.items():
        if name in values:
            values[name] = parse_size(values[name], values[place] or Path())
    return config_class(fake=FakeEngineConfig(**fake), **values)


def _mebibytes(num_bytes: Any) -> str:  # Any: a default, here always a whole number
    return f"{num_bytes // 2**20}MiB"
