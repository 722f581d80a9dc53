"""The files of a batch: lines are found and kept apart, rows survive a crash."""

import asyncio
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from slipstream.services.cli import batch_output
from slipstream.services.cli.batch_input import InputFile
from slipstream.services.cli.batch_output import OutputFile
from slipstream.shared.errors import ConfigurationError
from slipstream.shared.openai.batch_lines import Row


def line(custom_id: str, prompt: str = "Hi") -> str:
    body = {"prompt": prompt}
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}
    )


def source_of(tmp_path: Path, *lines: str) -> InputFile:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return InputFile(path)


def output_of(tmp_path: Path, source: InputFile) -> OutputFile:
    return OutputFile(tmp_path / "out.jsonl", {each.name: each for each in source.lines})


def row_of(source: InputFile, position: int, status: int = 200) -> Row:
    found = source.lines[position]
    response = {"status_code": status, "request_id": "r", "body": {}}
    return Row(found.row_id, found.custom_id, response, None)


def append(output: OutputFile, *rows: Row) -> None:
    async def all_at_once() -> None:
        await asyncio.gather(*map(output.append, rows))

    asyncio.run(all_at_once())


def rows_in(tmp_path: Path) -> list[Any]:
    content = (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    return [json.loads(each) for each in content.splitlines()]


def test_lines_are_found_between_empty_ones_and_read_again(tmp_path: Path) -> None:
    source = source_of(tmp_path, line("a"), "", "  ", line("ü"), "{")

    assert [(1, "a"), (4, "ü"), (5, None)] == [
        (each.number, each.custom_id) for each in source.lines
    ]
    assert [line("a"), line("ü"), "{"] == [
        source.read(each).decode().strip() for each in source.lines
    ]


def test_two_lines_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"line 3: custom_id 'a' is that of line 1 too"):
        source_of(tmp_path, line("a"), line("b"), line("a", "other"))


def test_two_broken_lines_are_told_apart(tmp_path: Path) -> None:
    source = source_of(tmp_path, "{", "{")

    assert 2 == len({each.row_id for each in source.lines})


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no requests"):
        source_of(tmp_path, "")
    with pytest.raises(ConfigurationError, match="No such file"):
        InputFile(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="is no file"):
        InputFile(tmp_path / "pipe")


def test_a_line_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    source = source_of(tmp_path, line("a"))
    (tmp_path / "in.jsonl").write_text(line("a", "Ho"), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="line 1 has changed"):
        source.read(source.lines[0])


def test_rows_of_an_earlier_run_are_found(tmp_path: Path) -> None:
    source = source_of(tmp_path, line("a"), line("b"), "{", line("c"))
    with output_of(tmp_path, source) as output:
        append(output, row_of(source, 0), row_of(source, 1, status=400), row_of(source, 2))
    with output_of(tmp_path, source) as again:
        found = again.found

    broken = source.lines[2].row_id
    assert {"a": True, "b": False, broken: True} == found
    assert ["a", "b", None] == [each["custom_id"] for each in rows_in(tmp_path)]


@pytest.mark.parametrize("torn", ['{"id": "batch_', '{"id": "x"}', "\xff"])
def test_a_torn_last_line_is_taken_away(tmp_path: Path, torn: str) -> None:
    source = source_of(tmp_path, line("a"), line("b"))
    with output_of(tmp_path, source) as output:
        append(output, row_of(source, 0))
    with (tmp_path / "out.jsonl").open("a", encoding="utf-8") as file:
        file.write(torn)
    with output_of(tmp_path, source) as again:
        assert {"a": True} == again.found
        append(again, row_of(source, 1))

    assert ["a", "b"] == [each["custom_id"] for each in rows_in(tmp_path)]


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    source = source_of(tmp_path, line("a"))
    (tmp_path / "out.jsonl").write_text("notes\n", encoding="utf-8")
    with (
        pytest.raises(ConfigurationError, match="line 1 is no row of a batch"),
        output_of(tmp_path, source),
    ):
        pass

    assert "notes\n" == (tmp_path / "out.jsonl").read_text(encoding="utf-8")


def test_answers_to_another_version_of_a_line_are_not_taken_for_its_own(tmp_path: Path) -> None:
    source = source_of(tmp_path, line("a"))
    with output_of(tmp_path, source) as output:
        append(output, row_of(source, 0))
    changed = source_of(tmp_path, line("b"), line("a", "changed"))
    with (
        pytest.raises(ConfigurationError, match=r"line 1 answers another request than line 2"),
        output_of(tmp_path, changed),
    ):
        pass


def test_a_file_goes_on_after_its_input_has_grown(tmp_path: Path) -> None:
    source = source_of(tmp_path, line("a"))
    with output_of(tmp_path, source) as output:
        append(output, row_of(source, 0))
    with output_of(tmp_path, source_of(tmp_path, line("new"), line("a"))) as again:
        assert {"a": True} == again.found


def test_one_batch_at_a_time_writes_a_file(tmp_path: Path) -> None:
    source = source_of(tmp_path, line("a"))
    with (
        output_of(tmp_path, source),
        pytest.raises(ConfigurationError, match="by another batch"),
        output_of(tmp_path, source),
    ):
        pass


def test_rows_are_on_the_disk_before_anybody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def note(_file: int) -> None:
        synced.append(len(rows_in(tmp_path)))

    monkeypatch.setattr(batch_output.os, "fsync", note)
    source = source_of(tmp_path, *(line(str(number)) for number in range(20)))
    with output_of(tmp_path, source) as output:
        append(output, *(row_of(source, position) for position in range(20)))

    assert 20 == len(rows_in(tmp_path)) == synced[-1]
    assert len(synced) < 20


def test_of_rows_whose_writing_fails_none_counts_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(tmp_path, *(line(str(number)) for number in range(20)))
    write = os.write

    sizes = iter([1000, 100])  # the first row, and a bit of what comes next

    def full(file: int, content: bytes) -> int:
        size = next(sizes, 0)
        if not size:
            raise OSError(errno.ENOSPC, "")
        return write(file, content[:size])

    async def all_at_once(output: OutputFile) -> list[BaseException | None]:
        rows = [row_of(source, position) for position in range(20)]
        return await asyncio.gather(*map(output.append, rows), return_exceptions=True)

    with output_of(tmp_path, source) as output:
        with monkeypatch.context() as patched:
            patched.setattr(batch_output.os, "write", full)
            first, *others = asyncio.run(all_at_once(output))

        assert first is None
        assert all("No space left" in str(each) for each in others)
        assert 1 == len(rows_in(tmp_path))
        with pytest.raises(ConfigurationError, match="No space left"):
            append(output, row_of(source, 1))

    with output_of(tmp_path, source) as output:
        assert ["0"] == [*output.found]
