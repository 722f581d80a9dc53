"""What tenants were served, and how little of that is kept."""

from slipstream.shared.ids import RequestId
from slipstream.shared.scheduling.queue import WaitingQueue
from slipstream.shared.scheduling.tenants import _MAX_NUM_IDLE, TenantCounters

from .scheduling_samples import take_all, waiting


def _serve(counters: TenantCounters, tenant: str, num_tokens: int) -> None:
    """Let a request come and go while one of `patient` waits, which was served nothing."""
    counters.began_to_wait(tenant, counters.of("patient"))
    counters.forget_idle({"patient", tenant})
    counters.chosen(tenant)
    counters.charge(tenant, num_tokens)


def test_ever_new_tenants_beside_one_that_waits_take_bounded_memory() -> None:
    """Their counters all lie above the floor, which doesn't move: still most of them go."""
    counters = TenantCounters()
    counters.began_to_wait("patient", None)
    sizes = []
    for number in range(30_000):
        _serve(counters, f"t{number}", 100)
        sizes.append(len(counters))

    assert max(sizes) <= 2 * (_MAX_NUM_IDLE + 3) + 1
    assert counters.of("patient") == 0


def test_counters_are_swept_rarely_not_for_each_request() -> None:
    counters = TenantCounters()
    counters.began_to_wait("patient", None)
    num_sweeps = 0
    for number in range(30_000):
        before = counters._counters
        _serve(counters, f"t{number}", 100)
        num_sweeps += counters._counters is not before

    assert 1 <= num_sweeps < 20


def test_those_that_were_served_most_are_remembered_longest() -> None:
    """Whoever is forgotten starts at the floor again: that gives away the least."""
    counters = TenantCounters()
    counters.began_to_wait("patient", None)
    for number in range(1000):
        _serve(counters, f"heavy{number}", 5000)
    for number in range(20_000):
        _serve(counters, f"light{number}", 100)

    assert {5000} == {counters.of(f"heavy{number}") for number in range(1000)}
    assert 0 == counters.of("light0")


def test_who_waits_and_whose_turn_it_was_last_are_never_forgotten() -> None:
    counters = TenantCounters()
    waiting = {f"w{number}" for number in range(100)}
    for tenant in waiting:
        counters.began_to_wait(tenant, 0)
        counters.charge(tenant, 1)
    counters.chosen("last")
    counters.charge("last", 1)
    for number in range(20_000):
        counters.charge(f"t{number}", 100)
        counters.forget_idle(waiting)

    assert {1} == {counters.of(tenant) for tenant in waiting}
    assert 1 == counters.of("last")


def test_a_tenant_that_was_forgotten_has_its_turn_when_it_comes_back() -> None:
    """Heaps may hold what it had before: it is looked at again when that comes up."""
    queue = WaitingQueue(10_000, 10**6, "fair")
    queue.add(waiting("patient", tenant="patient", latency_class="batch"))
    for number in range(10_000):
        queue.add(waiting(f"r{number}", tenant=f"t{number}"))
        queue.remove(RequestId(f"r{number}"))
        queue.counters.charge(f"t{number}", 100)
    assert 0 == queue.counters.of("t0"), "forgotten"
    assert 100 == queue.counters.of("t9999")
    queue.add(waiting("of the last", tenant="t9999"))
    queue.add(waiting("of the first", tenant="t0"))

    assert ["of the first", "of the last", "patient"] == take_all(queue)
