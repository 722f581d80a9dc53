"""Whether it is time to put everything back, for those who would rather go on."""

import asyncio


class Stopping:
    """Asked for once, and then for good."""

    def __init__(self) -> None:
        self.asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_asked(self) -> bool:
        """Whether it is time."""
        return self.asked.done()

    def ask(self) -> None:
        """Make it time."""
        if not self.asked.done():
            self.asked.set_result(None)

    async def rest(self, seconds: float) -> None:
        """Wait, unless it is time."""
        await asyncio.wait({self.asked}, timeout=seconds)
