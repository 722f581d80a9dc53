"""
Which defects of other engines are looked for here, and where.

Ids are those of the collection of known bugs: seventy-five, not consecutive, and the neighbours of
its section 2.16. A test of `B01` is called `test_b01_...`, of section 2.16 `test_s216_...`.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

_TESTS = Path(__file__).parents[1]
_FOLDER = Path(__file__).parent / "known_bugs"

IDS = (
    *("B01", "B02", "B03", "B05", "B07", "B09", "B11", "B12", "B13", "B14", "B15", "B17", "B18"),
    *("B20", "B21", "B24", "B26", "B27", "B30", "B31", "B32", "B33", "B34", "B35", "B36", "B38"),
    *("B40", "B42", "B43", "B45", "B47", "B49", "B51", "B52", "B54", "B55", "B57", "B58", "B61"),
    *("B62", "B63", "B64", "B65", "B66", "B69", "B71", "B72", "B74", "B75", "B76", "B77", "B79"),
    *("B81", "B83", "B84", "B85", "B87", "B89", "B91", "B92", "B93", "B94", "B97", "B98", "B100"),
    *("B101", "B102", "B104", "B106", "B108", "B109", "B110", "B111", "B113", "B115", "S216"),
)


@dataclass(frozen=True)
class Row:
    """Where an id is tested: in files of `known_bugs/`, and by tests elsewhere."""

    files: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


TABLE = {
    "B01": Row(("test_stop_strings.py",)),
    "B02": Row(("test_stop_strings.py",)),
    "B03": Row(("test_stop_strings.py",)),
    "B05": Row(("test_stop_strings.py",)),
    "B07": Row(("test_stop_strings.py",)),
    "B09": Row(("test_text.py",)),
    "B11": Row(("test_text.py",)),
    "B12": Row(others=("test_b12_leading_spaces_of_sentence_piece_tokens_are_kept",)),
    "B13": Row(("test_text.py",)),
    "B14": Row(("test_text.py",)),
    "B15": Row(
        ("test_text.py",),
        ("test_bos_comes_once_whether_text_or_chat",),
    ),
    "B17": Row(("test_lengths.py",)),
    "B18": Row(others=("test_b18_an_echo_with_nothing_to_generate_is_refused_by_name",)),
    "B20": Row(("test_lengths.py",)),
    "B21": Row(("test_lengths.py", "test_http_bodies.py")),
    "B24": Row(("test_lengths.py",)),
    "B26": Row(("test_parameter_values.py",)),
    "B27": Row(("test_parameter_values.py",)),
    "B30": Row(("test_lengths.py", "test_http_bodies.py")),
    "B31": Row(("test_parameter_values.py",)),
    "B32": Row(("test_parameter_values.py",)),
    "B33": Row(("test_batch_mixing.py",)),
    "B34": Row(("test_batch_mixing.py",)),
    "B35": Row(("test_batch_mixing.py",)),
    "B36": Row(("test_batch_mixing.py",)),
    "B38": Row(("test_batch_mixing.py",)),
    "B40": Row(
        ("test_batch_mixing.py",),
        (
            "test_b40_choices_are_those_of_requests_with_their_seeds",
            "test_b40_greedy_choices_are_one_and_the_same",
            "test_b40_streamed_choices_are_the_plain_ones",
        ),
    ),
    "B42": Row(("test_logprobs.py",)),
    "B43": Row(("test_logprobs.py",)),
    "B45": Row(("test_logprobs.py",)),
    "B47": Row(others=("test_b47_an_echoed_prompt_has_an_entry_a_token",)),
    "B49": Row(others=("test_b49_the_second_answer_is_the_first",)),
    "B51": Row(("test_endings.py", "test_http_streams.py")),
    "B52": Row(others=("test_b52_usage_counts_what_was_cached_streamed_and_plain",)),
    "B54": Row(("test_endings.py", "test_http_streams.py")),
    "B55": Row(("test_http_streams.py",)),
    "B57": Row(("test_life.py", "test_http_life.py")),
    "B58": Row(("test_life.py",)),
    "B61": Row(("test_life.py", "test_http_life.py")),
    "B62": Row(
        ("test_growth.py",),
        ("test_b62_the_index_is_bounded_by_the_pool",),
    ),
    "B63": Row(("test_growth.py",)),
    "B64": Row(others=("test_b64_prompts_that_share_tokens_but_no_beginning_share_nothing",)),
    "B65": Row(others=("test_b65_a_prompt_that_is_all_cached_is_answered_the_same",)),
    "B66": Row(others=("test_b66_a_chat_asked_again_and_again_does_not_drift",)),
    "B69": Row(others=("test_b69_a_salt_keeps_what_it_covers_to_itself",)),
    "B71": Row(
        others=(
            "test_two_hundred_mixed_requests_leave_no_block_leased",
            "test_b71_a_cache_far_too_small_gives_nobody_another_s_block",
        )
    ),
    "B72": Row(
        others=(
            "test_eight_bits_lose_a_little",
            "test_weights_lose_more_than_the_kv_cache",
        )
    ),
    "B74": Row(others=("test_b74_shared_prefixes_in_int8_beside_each_other",)),
    "B75": Row(("test_scheduling.py",)),
    "B76": Row(("test_scheduling.py",)),
    "B77": Row(("test_scheduling.py",)),
    "B79": Row(("test_scheduling.py",)),
    "B81": Row(("test_overload.py", "test_http_overload.py")),
    "B83": Row(("test_overload.py", "test_http_overload.py")),
    "B84": Row(("test_scheduling.py",)),
    "B85": Row(("test_speculation.py",)),
    "B87": Row(("test_speculation.py",)),
    "B89": Row(("test_speculation.py",)),
    "B91": Row(("test_speculation.py",)),
    "B92": Row(("test_speculation.py",)),
    "B93": Row(("test_speculation.py",)),
    "B94": Row(
        others=(
            "test_b94_what_pads_the_vocabulary_is_never_a_token",
            "test_a_draft_model_of_other_tokens_is_refused_with_both_names",
        )
    ),
    "B97": Row(("test_speculation.py",)),
    "B98": Row(("test_numerics.py",)),
    "B100": Row(
        ("test_numerics.py",),
        (
            "test_a_bad_row_is_one_bad_request",
            "test_a_row_that_is_not_finite_is_refused",
        ),
    ),
    "B101": Row(
        others=("test_b101_logprobs_are_those_of_a_causal_forward_also_in_chunks_of_seven",)
    ),
    "B102": Row(
        ("test_protocol.py", "test_http_bodies.py"),
        ("test_bad_input_is_refused_by_name_at_once",),
    ),
    "B104": Row(("test_protocol.py", "test_http_bodies.py")),
    "B106": Row(("test_http_bodies.py",), ("test_template_errors_are_the_clients",)),
    "B108": Row(("test_parameter_values.py", "test_http_bodies.py")),
    "B109": Row(("test_protocol.py", "test_http_bodies.py")),
    "B110": Row(
        ("test_protocol.py",),
        (
            "test_an_answer_too_large_for_a_message_says_so",
            "test_without_a_scheduler_the_client_knows_at_once",
            "test_what_the_server_would_not_take_is_refused_before_it_is_published",
            "test_streams_end_and_prefill_stays_when_the_decode_worker_is_killed",
        ),
    ),
    "B111": Row(others=("test_b111_every_finished_answer_validates",)),
    "B113": Row(others=("test_b113_a_broken_constraint_is_refused_by_field",)),
    "B115": Row(others=("test_b115_the_end_of_the_grammar_wins_over_min_tokens",)),
    "S216": Row(
        (
            "test_stop_strings.py",
            "test_lengths.py",
            "test_batch_mixing.py",
            "test_life.py",
            "test_http_life.py",
            "test_speculation.py",
        ),
        ("test_tiny_temperatures_are_greedy_with_the_lowest_id_on_a_tie",),
    ),
}


def test_every_id_has_its_row() -> None:
    assert sorted(IDS) == sorted(TABLE)
    assert 75 + 1 == len(set(IDS))


@pytest.mark.parametrize("name", IDS)
def test_what_a_row_names_is_there(name: str) -> None:
    row = TABLE[name]
    prefix = f"test_{name.lower()}_"

    assert row.files or row.others
    for file in row.files:
        assert any(each.startswith(prefix) for each in _tests_of(_FOLDER / file)), file
    assert set(row.others) <= _all_tests()


def test_every_test_of_a_known_bug_stands_in_its_row() -> None:
    for path in sorted(_FOLDER.glob("test_*.py")):
        for test in _tests_of(path):
            name = test.split("_")[1].upper()

            assert name in TABLE, f"{test} is of no known bug"
            assert path.name in TABLE[name].files, f"{test} is in {path.name}"


@cache
def _all_tests() -> frozenset[str]:
    """Return the names of all tests, wherever they stand."""
    return frozenset().union(*map(_tests_of, _TESTS.rglob("test_*.py")))


@cache
def _tests_of(path: Path) -> frozenset[str]:
    """Return the names of the tests in a file."""
    found = re.findall(
        r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
    )
    return frozenset(found)
