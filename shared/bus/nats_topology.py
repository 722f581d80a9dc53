"""The streams behind submissions, results and dead letters: made by whoever comes first."""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from slipstream.shared.bus import subjects
from slipstream.shared.bus.durable import DurableLimits
from slipstream.shared.errors import ConfigurationError

# A publish that is repeated within this time with the same id is stored once.
DUPLICATE_WINDOW_S = 120.0
# Messages that are taken, or put back for later. As many takers as there are share it, and each
# takes no more than it has room for.
MAX_NUM_TAKEN = 4096
CONSUMER = "scheduler"

# What the server lets nobody change, and what follows the settings.
_FIXED = ("retention", "storage")
_CHANGED = (
    "subjects",
    "max_msgs",
    "max_bytes",
    "max_age",
    "max_msg_size",
    "max_msgs_per_subject",
    "discard",
    "duplicate_window",
)
_NO_ROOM = 10047
_OVERLAP = 10065
_OTHER_CONFIGURATION = 10058


def result_stream() -> str:
    """Return the stream behind the bucket of results, named as every KV client expects it."""
    return f"KV_{subjects.RESULTS_BUCKET}"


def result_subject(key: str) -> str:
    """Return the subject of a key in that stream, as above."""
    return f"$KV.{subjects.RESULTS_BUCKET}.{key}"


def stream_configs(limits: DurableLimits) -> list[StreamConfig]:
    """Return the three streams as they should be."""
    queue = StreamConfig(
        name=subjects.SUBMIT_STREAM,
        # All: `submit.>` would leave out `submit` itself.
        subjects=[
            subjects.SUBMIT.pattern,
            subjects.SUBMIT_MODEL.wildcard,
            subjects.REQUEUE.wildcard,
            subjects.REQUEUE_MODEL.wildcard,
        ],
        retention=RetentionPolicy.WORK_QUEUE,
        storage=StorageType.FILE,
        # A full queue says so to whoever publishes; nothing that was taken is dropped.
        discard=DiscardPolicy.NEW,
        max_msgs=limits.max_num_queued,
        max_bytes=limits.max_queued_bytes,
        max_msg_size=limits.max_message_bytes,
        max_age=0,
        duplicate_window=DUPLICATE_WINDOW_S,
        # Results are found by sequence numbers: a queue that was deleted and made again goes on
        # with others, as long as less than a thousand messages a second come over all its life.
        first_seq=time.time_ns() // 1_000_000,
    )
    results = StreamConfig(
        name=result_stream(),
        subjects=[result_subject(">")],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        # A full bucket keeps what it promised to keep; endings wait until there is room.
        discard=DiscardPolicy.NEW,
        max_bytes=limits.max_result_bytes,
        max_age=limits.result_keep_s,
        max_msgs_per_subject=1,
        duplicate_window=min(DUPLICATE_WINDOW_S, limits.result_keep_s),
        allow_direct=True,
        allow_rollup_hdrs=True,
        allow_msg_ttl=True,
        deny_delete=True,
    )
    dead = StreamConfig(
        name=subjects.DEAD_STREAM,
        subjects=[subjects.DEAD.wildcard],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.OLD,
        max_bytes=limits.max_dead_bytes,
        max_age=limits.dead_keep_s,
        duplicate_window=min(DUPLICATE_WINDOW_S, limits.dead_keep_s),
    )
    return [queue, results, dead]


def consumer_config(limits: DurableLimits) -> ConsumerConfig:
    """Return the one consumer of the queue; its deliveries are counted, and ended, by takers."""
    return ConsumerConfig(
        name=CONSUMER,
        durable_name=CONSUMER,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=limits.redelivery_s,
        # With a limit here a message whose last taker dies would stay in the stream unseen.
        max_deliver=-1,
        max_ack_pending=MAX_NUM_TAKEN,
    )


async def ensure(stream: JetStreamContext, limits: DurableLimits) -> None:
    """Make what is missing and change what differs. Raises ConfigurationError, and nats' errors."""
    for wanted in stream_configs(limits):
        await _ensure_stream(stream, wanted)
    await stream.add_consumer(subjects.SUBMIT_STREAM, consumer_config(limits))


async def _ensure_stream(stream: JetStreamContext, wanted: StreamConfig) -> None:
    try:
        found = await _found_or_made(stream, wanted)
        _check_fixed(found, wanted)
        if _differing(found, wanted, _CHANGED):
            await stream.update_stream(replace(found, **_values(wanted, _CHANGED)))
    except nats.js.errors.APIError as error:
        remedy = _remedy(error, wanted)
        if remedy is None:
            raise
        raise ConfigurationError(remedy) from error


async def _found_or_made(stream: JetStreamContext, wanted: StreamConfig) -> StreamConfig:
    try:
        return (await stream.stream_info(str(wanted.name))).config
    except nats.js.errors.NotFoundError:
        pass
    try:
        return (await stream.add_stream(wanted)).config
    except nats.js.errors.APIError as error:
        if error.err_code != _OTHER_CONFIGURATION:
            raise
        # Somebody else was faster; what it has made is looked at as if it had been there.
        return (await stream.stream_info(str(wanted.name))).config


def _check_fixed(found: StreamConfig, wanted: StreamConfig) -> None:
    differing = _differing(found, wanted, _FIXED)
    if not differing:
        return
    said = ", ".join(
        f"{name} {_plain(getattr(found, name))} in place of {_plain(getattr(wanted, name))}"
        for name in differing
    )
    raise ConfigurationError(
        f"the JetStream stream {wanted.name} is there with {said}, which can't be changed: remove "
        f"it (`nats stream rm {wanted.name}`), or pass --max-num-submissions 0 to go without"
    )


def _differing(found: StreamConfig, wanted: StreamConfig, names: Iterable[str]) -> list[str]:
    # Unlimited is written as -1, or as nothing at all.
    return [
        name
        for name in names
        if (getattr(found, name) or -1) != (getattr(wanted, name) or -1)
        and getattr(wanted, name) is not None
    ]


def _values(config: StreamConfig, names: Iterable[str]) -> dict[str, Any]:
    # Any: values of every type
    return {name: getattr(config, name) for name in names if getattr(config, name) is not None}


def _plain(value: object) -> object:
    return getattr(value, "value", value)


def _remedy(error: nats.js.errors.APIError, wanted: StreamConfig) -> str | None:
    """Return what is wrong and how to mend it, where more time does not."""
    if error.err_code == _NO_ROOM:
        return (
            f"NATS has no room for the stream {wanted.name} of {wanted.max_bytes} bytes: raise "
            "max_file_store of the server, or lower --max-queued-bytes, --max-result-bytes or "
            "--max-dead-bytes, or pass --max-num-submissions 0 to go without"
        )
    if error.err_code == _OVERLAP:
        return (
            f"another JetStream stream captures subjects of {wanted.name} "
            f"({', '.join(wanted.subjects or [])}): find it with `nats stream ls --subjects`"
        )
    return None
