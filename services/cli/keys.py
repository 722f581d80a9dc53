"""Single keys of a terminal, while something else is shown there."""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Iterator


@contextlib.contextmanager
def key_pressed(keys: str) -> Iterator[asyncio.Event]:
    """Yield an event that is set when one of the keys is pressed; never without a terminal."""
    pressed = asyncio.Event()
    if not sys.stdin.isatty():
        yield pressed
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        found = os.read(descriptor, 64)
        if not found or set(found.decode(errors="replace")) & set(keys):
            pressed.set()

    # Keys come at once and are not shown; Ctrl-C is a signal as ever.
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
