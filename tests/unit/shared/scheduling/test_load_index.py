"""Who is the least busy, against a sorted list."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.shared.ids import WorkerId
from slipstream.shared.scheduling.load_index import LoadIndex


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 3)), max_size=300),
    st.integers(1, 5),
)
def test_the_least_busy_come_first(steps: list[tuple[str, int | None]], max_num: int) -> None:
    index = LoadIndex()
    loads: dict[str, int] = {}
    for name, load in steps:
        if load is None:
            index.remove(WorkerId(name))
            loads.pop(name, None)
        else:
            index.set(WorkerId(name), load)
            loads[name] = load
        expected = sorted(loads, key=lambda each: (loads[each], each))
        assert expected[:max_num] == index.least(max_num)
    assert sorted(loads) == sorted(index.workers())
    assert len(index._heap) <= 4 * len(loads) + 65 + 16
