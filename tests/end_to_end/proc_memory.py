"""What the kernel says of a process's memory: its mappings of one file, and what it has alone."""

import re
from dataclasses import dataclass
from pathlib import Path

_HEADER = re.compile(r"[0-9a-f]+-[0-9a-f]+ (\S{4}) \S+ \S+ (\d+) *(.*)")
_FIELD = re.compile(r"(\w+): +(\d+) kB")
_PRIVATE = ("Private_Clean", "Private_Dirty")


@dataclass(frozen=True)
class Memory:
    """Bytes of a process, at one moment."""

    inodes: frozenset[int]  # that stand behind the file's mappings
    is_shared: bool  # all of these: what one process writes there the others read
    num_touched: int  # of the file, by this process
    num_proportional: int  # of the file, each page divided by the number of processes that have it
    num_private: int  # of anything else that no other process has


def memory_of(pid: int, file_name: str) -> Memory:
    """Read the memory of a process beside a file of which it maps the name's pattern."""
    inodes, modes = set(), set()
    touched = proportional = private = 0
    is_file = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if header := _HEADER.fullmatch(line):
            is_file = re.search(file_name, header[3]) is not None
            if is_file:
                modes.add(header[1])
                inodes.add(int(header[2]))
        elif field := _FIELD.match(line):
            name, num_bytes = field[1], int(field[2]) * 1024
            if is_file:
                touched += num_bytes * (name == "Rss")
                proportional += num_bytes * (name == "Pss")
            else:
                private += num_bytes * (name in _PRIVATE)
    is_shared = all(mode.endswith("s") for mode in modes)
    return Memory(frozenset(inodes), is_shared, touched, proportional, private)
