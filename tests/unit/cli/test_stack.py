"""Which processes a stack has, and what they are told."""

import itertools
from pathlib import Path

import pytest

from slipstream.services.cli.child import ChildSpec, start_child
from slipstream.services.cli.run_directory import RunDirectory
from slipstream.services.cli.stack import StackSettings, plan_services
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.lifecycle import StatusFile

RUN = RunDirectory(Path("/dev/shm/slipstream-1/7"))
URL = "nats://127.0.0.1:4222"
_CACHE_VARIABLES = ("SLIPSTREAM_PREFIX_CACHE", "SLIPSTREAM_BLOCK_HASH_BITS")


def settings(**changes: object) -> StackSettings:
    return StackSettings(cache_dir=Path("/cache"), **changes)  # type: ignore[arg-type] # checked by each test


def test_a_stack_has_one_of_each_and_as_many_workers_as_asked_for() -> None:
    specs = plan_services(settings(num_prefill=2, num_decode=3, num_draft=0), RUN, URL, {})

    assert [
        "scheduler",
        "kv",
        "prefill-1",
        "prefill-2",
        "decode-1",
        "decode-2",
        "decode-3",
    ] == [spec.name for spec in specs]
    assert [1, 1, 0, 0, 0, 0, 0] == [spec.stop_phase for spec in specs]
    # Workers share the cores among themselves.
    assert not any("SLIPSTREAM_THREADS" in spec.environment for spec in specs)


def test_schedulers_beside_the_first_stand_by() -> None:
    specs = plan_services(settings(num_scheduler=2), RUN, URL, {})

    assert ["scheduler-1", "scheduler-2", "kv"] == [spec.name for spec in specs[:3]]
    assert 6 == settings(num_scheduler=2).num_services


def test_children_share_everything_but_their_status_files() -> None:
    specs = plan_services(settings(num_decode=2, route="remote"), RUN, URL, {"HOME": "/h"})

    files = [spec.environment["SLIPSTREAM_STATUS_FILE"] for spec in specs]
    assert len(files) == len(set(files))
    for spec in specs:
        assert "/h" == spec.environment["HOME"]
        assert "1" == spec.environment["PYTHONSAFEPATH"]
        assert URL == spec.environment["SLIPSTREAM_NATS_URL"]
        assert str(RUN.arena_dir) == spec.environment["SLIPSTREAM_ARENA_DIR"]
        assert "remote" == spec.environment["SLIPSTREAM_ROUTE"]
        assert "-P" in spec.command


def test_what_the_user_has_set_stays_unless_an_option_says_otherwise() -> None:
    environment = {"SLIPSTREAM_THREADS": "3", "SLIPSTREAM_KV_MEMORY": "1GiB"}
    kept = plan_services(settings(), RUN, URL, environment)[0].environment
    asked = settings(num_threads=2, kv_memory="64MiB")
    changed = plan_services(asked, RUN, URL, environment)[0].environment

    assert ("3", "1GiB") == (kept["SLIPSTREAM_THREADS"], kept["SLIPSTREAM_KV_MEMORY"])
    assert ("2", "64MiB") == (changed["SLIPSTREAM_THREADS"], changed["SLIPSTREAM_KV_MEMORY"])


@pytest.mark.parametrize(
    ("num_draft", "environment", "place"),
    [(1, {}, "draft"), (0, {}, None), (1, {"SLIPSTREAM_DRAFT_PLACE": "decode"}, "decode")],
)
def test_a_draft_worker_that_is_started_is_asked(
    num_draft: int, environment: dict[str, str], place: str | None
) -> None:
    specs = plan_services(settings(num_draft=num_draft), RUN, URL, environment)
    (decode,) = [spec for spec in specs if spec.name == "decode"]

    assert place == decode.environment.get("SLIPSTREAM_DRAFT_PLACE")


def test_the_prefix_cache_is_as_the_environment_says_unless_an_option_says_otherwise() -> None:
    environment = {"SLIPSTREAM_PREFIX_CACHE": "0"}
    kept = plan_services(settings(), RUN, URL, environment)[1].environment
    asked = settings(is_prefix_cache_on=True, block_hash_bits=8, is_test_mode=True)
    changed = plan_services(asked, RUN, URL, environment)[1].environment

    assert ("0", None) == tuple(map(kept.get, _CACHE_VARIABLES))
    assert ("1", "8") == tuple(map(changed.get, _CACHE_VARIABLES))


@pytest.mark.parametrize(
    ("port", "ports"),
    [
        (9300, ["9300", "9301", "9302", "9303", "9304", "9305"]),
        (0, ["0"] * 6),
        (None, [None] * 6),
    ],
)
def test_each_service_has_a_port_of_its_own_for_metrics(
    port: int | None, ports: list[str | None]
) -> None:
    specs = plan_services(settings(num_decode=2, metrics_port=port), RUN, URL, {})

    assert ports == [spec.environment.get("SLIPSTREAM_METRICS_PORT") for spec in specs]


def test_ports_for_metrics_must_all_exist() -> None:
    assert 5 == settings(metrics_port=65_531).num_services
    with pytest.raises(ConfigurationError, match="--metrics-port 65532 leaves no port"):
        settings(metrics_port=65_532)


def test_settings_that_can_not_work_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="--test-mode"):
        settings(engine="fake")
    with pytest.raises(ConfigurationError, match="--prefill 1"):
        settings(route="remote", num_prefill=0)
    with pytest.raises(ConfigurationError, match=r"--block-hash-bits 8 .* needs --test-mode"):
        settings(block_hash_bits=8)
    with pytest.raises(ConfigurationError, match=r"--block-hash-bits is 129.*\[0, 128\]"):
        settings(block_hash_bits=129, is_test_mode=True)


def test_a_gateway_that_is_started_again_takes_the_port_that_its_clients_know(
    tmp_path: Path,
) -> None:
    specs = plan_services(settings(http_port=0), RunDirectory(tmp_path), URL, {})
    gateway = next(spec for spec in specs if spec.name == "gateway")
    assert "0" == gateway.environment["SLIPSTREAM_HTTP_PORT"]
    assert {} == gateway.more_environment()

    path = Path(gateway.environment["SLIPSTREAM_STATUS_FILE"])
    path.parent.mkdir(parents=True, exist_ok=True)
    status = StatusFile(path, "gateway", "g")
    status.http_url = "http://127.0.0.1:4711"
    status.write()

    assert {"SLIPSTREAM_HTTP_PORT": "4711"} == gateway.more_environment()
    # A process that didn't get as far leaves no file.
    path.unlink()
    assert {"SLIPSTREAM_HTTP_PORT": "4711"} == gateway.more_environment()


async def test_what_is_known_by_then_is_told_to_a_child_that_starts() -> None:
    numbers = itertools.count()
    spec = ChildSpec(
        name="child",
        command=("/bin/sh", "-c", "echo $PORT"),
        environment={"PORT": "none"},
        more_environment=lambda: {"PORT": str(next(numbers))},
        is_ready=lambda _pid: True,
    )
    told: list[str] = []

    for _ in range(2):
        child = await start_child(spec, lambda _name, line: told.append(line.strip()))
        await child.wait()

    assert ["0", "1"] == told
