"""Every wait has a deadline, or stands here with the reason why it needs none."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Commands are interrupted by who waits for them.
PARTS = ("shared", "services", "client")
COMMANDS = ROOT / "services" / "cli"
# What may never come: of events, queues and locks, then of streams and sockets.
ENDLESS = {"wait", "get", "acquire", "join", "drain", "wait_closed"}
STREAMS = {
    "read",
    "readexactly",
    "readline",
    "readuntil",
    "open_connection",
    "open_unix_connection",
}
BOUNDS = {"asyncio.timeout", "asyncio.timeout_at"}

A_LOOP = "a loop that waits for work as long as its process lives"
A_LIFE = "waits for the end of what it runs, and ends that if it is ended itself"
IN_A_BOUND = "all who call it have a deadline around it"
REASONS = {
    "shared/bus/nats_bus.py:wait_lost": A_LOOP,
    "shared/bus/nats_refusals.py:unless_refused": IN_A_BOUND,
    "shared/process.py:wait": A_LIFE,
    "shared/lifecycle.py:_run_until": A_LIFE,
    "shared/lifecycle.py:_start_and_wait": A_LIFE,
    "shared/client/mailbox.py:take": IN_A_BOUND,
    "shared/kv/host_link.py:send": IN_A_BOUND,
    "shared/kv/host_link.py:_greet": IN_A_BOUND,
    "shared/telemetry/metrics_endpoint.py:_answer": IN_A_BOUND,
    "shared/kv/host_link.py:_read": "greetings are read in a bound; of the rest it waits for work",
    "shared/kv/transfer/threads.py:_outwait": "work on a thread that was told to stop",
    "shared/worker/draining.py:wait_drained": A_LOOP,
    "shared/worker/engine.py:wait": A_LOOP,
    "services/gateway/streams.py:_merged": "who sends to it has a deadline, and always an end",
    "services/gateway/service.py:wait": A_LIFE,
    "services/gateway/console.py:_serve": A_LIFE,
    "services/gateway/generation_endpoint.py:_run": A_LIFE,
    "services/scheduler/submission_desk.py:_turn": "the turn of a submission ends with it",
    "services/scheduler/desk.py:place_loop": A_LOOP,
    "services/scheduler/lease.py:_create": "the store has deadlines of its own",
    "services/scheduler/lease.py:_renew": "as above",
    "services/scheduler/reign.py:stop": "a term drains for as long as it is configured to",
    "services/scheduler/reign.py:_turn_loop": A_LOOP,
    "services/scheduler/relay.py:loop": A_LOOP,
    "services/kv_manager/reclaimer.py:run": A_LOOP,
    "services/prefill/service.py:wait": A_LIFE,
    "services/decode/service.py:wait": A_LIFE,
    "services/decode/jobs.py:_run": "a sequence is retired by its deadline, or with its worker",
    "services/decode/pulls.py:take": "a task that has just been cancelled",
    "services/decode/grants.py:refill_loop": A_LOOP,
    "client/async_client.py:generate": "a stream is read to its own deadline",
    "client/async_client.py:chat": "as above",
    "client/nats_transport.py:_first": "a task that has just been cancelled",
    "client/streams.py:next_piece": "who puts to it has a deadline, and always an end",
}


def unbounded(path: Path) -> Iterator[str]:
    """Yield the functions of a file that wait without a deadline around it."""
    name = path.relative_to(ROOT).as_posix()
    pending: list[tuple[ast.AST, str, bool]] = [(ast.parse(path.read_text("utf-8")), "", False)]
    while pending:
        node, function, is_bound = pending.pop()
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
            function, is_bound = node.name, False
        if isinstance(node, ast.AsyncWith):
            is_bound = is_bound or any(
                isinstance(item.context_expr, ast.Call)
                and ast.unparse(item.context_expr.func) in BOUNDS
                for item in node.items
            )
        if isinstance(node, ast.Await) and not is_bound and _may_last(node.value):
            yield f"{name}:{function}"
        pending += [(child, function, is_bound) for child in ast.iter_child_nodes(node)]


def _may_last(value: ast.expr) -> bool:
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return False
    if ast.unparse(value.func) == "asyncio.wait":
        return all(keyword.arg != "timeout" for keyword in value.keywords)
    # With arguments they are others: of a store, or with a time.
    return value.func.attr in STREAMS or (value.func.attr in ENDLESS and not value.args)


def found() -> set[str]:
    paths = [path for part in PARTS for path in (ROOT / part).rglob("*.py")]
    return {each for path in paths if not path.is_relative_to(COMMANDS) for each in unbounded(path)}


def test_every_wait_has_a_deadline_or_a_reason() -> None:
    assert set() == found() - set(REASONS), "bound them by asyncio.timeout, or say why not"


def test_no_reason_outlives_its_wait() -> None:
    assert set() == set(REASONS) - found()


def test_a_wait_that_is_not_bound_is_seen() -> None:
    waits = {
        "event.wait()": True,
        "asyncio.wait(tasks)": True,
        "asyncio.wait(tasks, timeout=1)": False,
        "store.get(key)": False,
        "jobs.drain(5)": False,
        "queue.get()": True,
        "reader.readexactly(4)": True,
    }

    assert waits == {each: _may_last(ast.parse(each, mode="eval").body) for each in waits}
