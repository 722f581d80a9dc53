"""compose.yaml is valid, keeps its rules, and works: its services run apart and answer."""

import asyncio
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from slipstream.services.cli.nats_keys import KEYED_ROLES, KeySet, make_key_set
from slipstream.services.cli.prompt_options import PromptOptions
from slipstream.services.cli.settings import SETTINGS, variable_of
from slipstream.services.cli.sizes import parse_size
from slipstream.shared.bus.nats_bus import NatsBus
from slipstream.shared.bus.subjects import PREFIX, TOPICS
from slipstream.shared.client.answers import Answer, complete
from slipstream.shared.config import DEFAULT_MODEL

from . import compose_runner, composed
from .composed import COMPOSE_FILE, KEPT_PATHS, NATS_CONF, ROOT

OURS = ("scheduler", "kv", "prefill", "decode", "draft", "gateway")
WITH_PORTS = {"nats", "jaeger", "gateway"}
# An image that can't be asked anything.
WITHOUT_HEALTH_CHECK = {"jaeger"}
# What ends by itself.
ONE_SHOT = {"keys", "operator"}
KEYS_DIR = "/run/slipstream/keys"
_UP_S = 90.0
_LOGGED_S = 45.0  # longer than a worker waits for its KV manager
_NOT_UP_S = 12.0  # twice what a stack takes that does come up

Compose = compose_runner.Compose


@pytest.fixture
def compose() -> Compose:
    # Without any variable: `docker compose up` must need no edits.
    return compose_runner.load_compose(COMPOSE_FILE, {})


# The rules.


def test_compose_follows_the_schema() -> None:
    checker = Path(sys.executable).parent / "check-jsonschema"
    checked = subprocess.run(
        [checker, "--builtin-schema", "vendor.compose-spec", COMPOSE_FILE],
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == checked.returncode, checked.stdout


def test_nats_conf_is_valid(tmp_path: Path) -> None:
    server = Path(sys.executable).parent / "nats-server"
    shutil.copy(NATS_CONF, tmp_path)
    make_key_set(KeySet(tmp_path / "keys"))
    checked = subprocess.run(
        [server, "-t", "-c", tmp_path / NATS_CONF.name], capture_output=True, text=True, check=False
    )

    assert 0 == checked.returncode, checked.stderr


def test_images_are_pinned(compose: Compose) -> None:
    for name, service in compose["services"].items():
        assert re.search(r":v?\d+\.\d+\.\d+", service["image"]), name
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    bases = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)

    assert bases
    assert all(re.fullmatch(r"python:3\.11\.\d+-slim-\w+", base) for base in bases)


def test_the_gateway_listens_where_its_port_leads(compose: Compose) -> None:
    gateway = compose["services"]["gateway"]

    assert "0.0.0.0" == gateway["environment"]["SLIPSTREAM_HTTP_HOST"]
    port = gateway["environment"]["SLIPSTREAM_HTTP_PORT"]
    assert [f"127.0.0.1:{port}:{port}"] == gateway["ports"]


def test_ports_are_bound_to_loopback_and_workers_have_none(compose: Compose) -> None:
    for name, service in compose["services"].items():
        assert ("ports" in service) == (name in WITH_PORTS), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert "container_name" not in service, "it would forbid --scale"


def test_every_service_has_a_health_check_or_a_reason(compose: Compose) -> None:
    without = {n for n, service in compose["services"].items() if "healthcheck" not in service}

    assert WITHOUT_HEALTH_CHECK | ONE_SHOT == without


def test_services_wait_for_health_where_it_is_checked(compose: Compose) -> None:
    for name, service in compose["services"].items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed not in WITHOUT_HEALTH_CHECK
            awaited = "service_completed_successfully" if needed in ONE_SHOT else "service_healthy"
            assert awaited == how["condition"], name


def test_every_variable_is_a_setting_of_its_service(compose: Compose) -> None:
    known = {variable_of(field) for field in SETTINGS}
    for name in OURS:
        service = compose["services"][name]
        ours = {each for each in service["environment"] if each.startswith("SLIPSTREAM_")}
        assert ours <= known, name
        assert Path("/tmp") in Path(service["environment"]["SLIPSTREAM_STATUS_FILE"]).parents


def test_services_run_without_rights(compose: Compose) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"], name
        assert ["ALL"] == service["cap_drop"], name
        assert ["no-new-privileges:true"] == service["security_opt"], name
        assert 0 < service["pids_limit"] <= 512, name
        assert 1 <= int(service["mem_limit"].removesuffix("g")) <= 4, name
        assert not service.keys() & {"privileged", "cap_add", "network_mode", "pid", "ipc"}, name
    for name in OURS:
        assert compose["services"][name]["init"], name
        assert not str(compose["services"][name]["user"]).startswith(("0", "root")), name


def test_the_arena_is_one_memory_backed_volume_at_one_path(compose: Compose) -> None:
    options = compose["volumes"]["arena"]["driver_opts"]
    size = dict(each.split("=") for each in options["o"].split(","))["size"]

    assert "tmpfs" == options["type"]
    for name in ("kv", "prefill", "decode"):
        service = compose["services"][name]
        arena = f"arena:{service['environment']['SLIPSTREAM_ARENA_DIR']}"
        assert arena == service["volumes"][0]
    # Its size is written once; the KV manager takes less than half of whatever it is.
    text = COMPOSE_FILE.read_text()
    assert 1 == text.count("SLIPSTREAM_ARENA_SIZE")
    assert 1 == text.count(f":-{size}}}")
    share = compose["services"]["kv"]["environment"]["SLIPSTREAM_KV_MEMORY"]
    assert parse_size(share, Path("/dev/shm")) < parse_size("50%", Path("/dev/shm"))


def test_a_service_is_given_its_own_key_alone(compose: Compose) -> None:
    for name in OURS:
        service = compose["services"][name]
        keys = [volume for volume in service["volumes"] if volume.startswith("keys-")]
        assert [f"keys-{name}:{KEYS_DIR}/{name}:ro"] == keys
        assert ["--nats-nkey", f"{KEYS_DIR}/{name}/nats.nk"] == service["command"][-2:]
    made = compose["services"]["keys"]["volumes"]
    assert [f"keys-{each}:{KEYS_DIR}/{each}" for each in ("nats", *KEYED_ROLES)] == made
    folders = compose_runner.read_image_folders(ROOT / "deploy" / "Dockerfile")
    assert {f"{KEYS_DIR}/{each}" for each in ("nats", *KEYED_ROLES)} == folders


def test_only_declared_subjects_are_named() -> None:
    known = {topic.wildcard for topic in TOPICS}
    for path in (COMPOSE_FILE, NATS_CONF):
        named = re.findall(re.escape(PREFIX) + r"[\w.*>-]*\w", path.read_text())
        assert set(named) <= known, path


def test_the_image_keeps_the_sources_off_the_import_path() -> None:
    environment = compose_runner.read_image_environment(ROOT / "deploy" / "Dockerfile")

    assert "1" == environment["PYTHONSAFEPATH"]
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert f"slipstream model pull {DEFAULT_MODEL}" in dockerfile
    assert re.search(r"^USER 10001", dockerfile, re.MULTILINE)


# The stack itself, every service in its own namespaces.


@pytest.fixture
def needs_namespaces() -> None:
    reason = compose_runner.why_impossible()
    if reason is not None:
        _give_up(f"namespaces can't be made here: {reason}", os.environ)


def _give_up(reason: str, environment: Mapping[str, str]) -> NoReturn:
    """Skip the test; in CI fail, for there nobody would notice."""
    if environment.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def test_the_tests_below_are_skipped_elsewhere_than_in_ci_only() -> None:
    with pytest.raises(pytest.fail.Exception, match="why"):
        _give_up("why", {"CI": "true"})
    with pytest.raises(pytest.skip.Exception, match="why"):
        _give_up("why", {})


def _serve_on(compose: Compose, port: int) -> Compose:
    """Move the gateway from its container's own network to a port of this machine's loopback."""
    moved = copy.deepcopy(compose)
    moved["services"]["gateway"]["environment"] |= {
        "SLIPSTREAM_HTTP_HOST": "127.0.0.1",
        "SLIPSTREAM_HTTP_PORT": str(port),
    }
    return moved


def _ask_over_http(port: int) -> str:
    body = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8}
    url = f"http://127.0.0.1:{port}/v1/completions"
    with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as answer:
        text: str = json.load(answer)["choices"][0]["text"]
        return text


async def _ask(nats_address: str) -> Answer:
    bus = await NatsBus.connect(f"nats://{nats_address}", "test")
    try:
        request = PromptOptions(temperature=0.0, max_tokens=12, stream=False).request(
            "What is the capital of France?"
        )
        return await complete(bus, request, timeout_s=60)
    finally:
        await bus.close()


@pytest.mark.nats
@pytest.mark.usefixtures("needs_namespaces")
def test_an_instance_sees_nothing_but_what_it_declares(compose: Compose, tmp_path: Path) -> None:
    """Without this the tests below would prove nothing: two instances share the volume alone."""
    look = (
        "import json, os, pathlib, socket; print(json.dumps({"
        "'hostname': socket.gethostname(), 'uid': os.getuid(), 'pids': len([p for p in "
        "os.listdir('/proc') if p.isdigit()]), 'shm': os.listdir('/dev/shm'), 'tmp': "
        "os.listdir('/tmp'), 'run': sorted(os.listdir('/run')), 'arena': sorted(os.listdir("
        "'/run/slipstream/arena')) if os.path.isdir('/run/slipstream/arena') else None, "
        f"'keys': os.listdir('{KEYS_DIR}')}}))"
    )
    for name in ("kv", "decode", "scheduler"):
        compose["services"][name]["command"] = ["sleep", "infinity"]
    with composed.running(compose, tmp_path) as runner:
        kv, decode = runner.start("kv", "kv-1"), runner.start("decode", "decode-1")
        scheduler = runner.start("scheduler", "scheduler-1")
        _write(runner, kv, "/run/slipstream/arena/arena.1")
        _write(runner, kv, "/dev/shm/private")
        _write(runner, kv, "/tmp/private")
        seen = {
            each.name: json.loads(_output(runner, each, [sys.executable, "-c", look]))
            for each in (kv, decode, scheduler)
        }
        elsewhere = runner.execute(kv, ["touch", str(ROOT / "written")])

    assert ["arena.1"] == seen["kv-1"]["arena"] == seen["decode-1"]["arena"]
    assert seen["scheduler-1"]["arena"] is None
    for name, each in seen.items():
        assert ["slipstream"] == each["run"], name
        assert [name.removesuffix("-1")] == each["keys"], name
    # A checkout or an interpreter below /tmp is let in: what the image would carry.
    kept = {path.parts[2] for path in KEPT_PATHS if path.is_relative_to("/tmp")}
    assert ["private"] == seen["kv-1"]["shm"]
    assert kept | {"private"} == set(seen["kv-1"]["tmp"])
    for name in ("decode-1", "scheduler-1"):
        assert [] == seen[name]["shm"]
        assert kept == set(seen[name]["tmp"])
    assert all(each["pids"] <= 3 for each in seen.values())
    assert {name: name for name in seen} == {n: each["hostname"] for n, each in seen.items()}
    if 0 == os.geteuid():
        assert {10001} == {each["uid"] for each in seen.values()}
    assert 0 != elsewhere.returncode, "the root must be read-only"


def _write(
    runner: compose_runner.ComposeRunner, instance: compose_runner.Instance, path: str
) -> None:
    # The namespaces are set up step by step: the first command waits for the last step.
    for _ in range(250):
        written = runner.execute(instance, ["touch", path])
        if 0 == written.returncode:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path}: {written.stderr}\n{instance.log}")


def _output(
    runner: compose_runner.ComposeRunner,
    instance: compose_runner.Instance,
    command: list[str],
) -> str:
    done = runner.execute(instance, command)
    assert 0 == done.returncode, done.stderr
    return done.stdout


@pytest.mark.nats
@pytest.mark.model
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("needs_namespaces", "packed_float32")
@pytest.mark.parametrize("num_decode", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_the_composed_stack_becomes_healthy_and_answers(
    compose: Compose, tmp_path: Path, num_decode: int
) -> None:
    port = composed.unused_port()
    with composed.running(_serve_on(compose, port), tmp_path) as runner:
        runner.up(list(OURS), {"decode": num_decode}, _UP_S)
        answer = asyncio.run(_ask(runner.hosts["nats:4222"]))
        text = _ask_over_http(port)

    assert "Paris" in answer.text
    assert "Paris" in text
    assert "remote" == answer.route


@pytest.mark.nats
@pytest.mark.model
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("needs_namespaces", "packed_float32")
@pytest.mark.parametrize(
    ("without", "complaint"),
    [
        # Nowhere to make the arena.
        (("kv", "prefill", "decode"), r"service_failed.*'/run/slipstream"),
        *(
            pytest.param((role,), r"kv_manager_awaited.*/arena/kv\.sock", marks=pytest.mark.slow)
            for role in ("prefill", "decode")
        ),
    ],
)
def test_the_stack_fails_without_the_arena_volume(
    compose: Compose, tmp_path: Path, without: tuple[str, ...], complaint: str
) -> None:
    """The tests above can fail: what they prove is that the volume is what joins the services."""
    broken = copy.deepcopy(compose)
    for name in without:
        volumes = broken["services"][name]["volumes"]
        volumes[:] = [each for each in volumes if not each.startswith("arena:")]
    with composed.running(broken, tmp_path) as runner:
        with pytest.raises(compose_runner.UnhealthyError, match=rf"{without[0]}-1 "):
            runner.up([name for name in OURS if name != "gateway"], {}, _NOT_UP_S)
        (instance,) = (each for each in runner.instances if each.name == f"{without[0]}-1")
        # Not because the machine is slow: that one would complain of nothing.
        _wait_logged(instance, complaint)


def _wait_logged(instance: compose_runner.Instance, pattern: str) -> None:
    deadline_s = time.monotonic() + _LOGGED_S
    while re.search(pattern, instance.log) is None:
        assert time.monotonic() < deadline_s, f"no {pattern} in the log:\n{instance.log}"
        time.sleep(0.1)
