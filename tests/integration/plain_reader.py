"""A client that knows nats-py, JSON and what the README says of streams, and nothing of ours."""

import asyncio
import json
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

GENERATE = "slipstream.v1.generate"
RESUME = "slipstream.v1.resume"
SILENCE_S = 2.0
_PAUSE_S = 0.5


class PlainReader:
    """Reads one stream at a time to its ending."""

    def __init__(self, connection: Client) -> None:
        self._connection = connection
        self._messages: asyncio.Queue[Msg] = asyncio.Queue()
        self.request_id = ""
        self.text = ""
        self.num_tokens = 0
        self.num_resumes = 0
        self.ending: dict[str, Any] = {}  # Any: as JSON has it
        self._resumed_s = 0.0

    @classmethod
    async def connect(cls, url: str) -> "PlainReader":
        """Connect as anybody would who wants to stay connected."""
        connection = await nats.connect(
            url,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,  # type: ignore[arg-type] # it takes a float
            error_cb=_quiet,
        )
        return cls(connection)

    async def read(self, prompt: str, timeout_s: float, **fields: Any) -> str:
        """Return the text. Any: fields of a request, as JSON has them."""
        self._inbox = self._connection.new_inbox()
        await self._connection.subscribe(self._inbox, cb=self._messages.put)
        body = {"prompt": prompt, "stream": True, **fields}
        await self._connection.publish(GENERATE, json.dumps(body).encode(), reply=self._inbox)
        async with asyncio.timeout(timeout_s):
            while not self._is_whole:
                try:
                    message = await asyncio.wait_for(self._messages.get(), SILENCE_S)
                except TimeoutError:
                    await self._resume()
                else:
                    await self._take(message)
        assert "finished" == self.ending["type"], self.ending
        return self.text

    async def close(self) -> None:
        """Hang up."""
        await self._connection.close()

    @property
    def _is_whole(self) -> bool:
        if not self.ending or self.ending["type"] == "failed":
            return bool(self.ending)
        return self.num_tokens >= int(self.ending["num_tokens"])

    async def _take(self, message: Msg) -> None:
        if not message.data:
            return  # the server says that nobody listened to a resume
        said = json.loads(message.data)
        self.request_id = said.get("request_id") or self.request_id
        match said["type"]:
            case "token_frame":
                await self._take_frame(said)
            case "finished" | "failed":
                self.ending = said
                if not self._is_whole:
                    await self._resume()

    async def _take_frame(self, frame: dict[str, Any]) -> None:  # Any: as JSON has it
        num_known = self.num_tokens - frame["index"]
        if num_known < 0 or len(self.text) < frame["text_offset"]:
            await self._resume()
            return
        self.num_tokens += len(frame["token_ids"][num_known:])
        self.text += frame["text"][len(self.text) - frame["text_offset"] :]

    async def _resume(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if not self.request_id or now_s - self._resumed_s < _PAUSE_S:
            return
        self._resumed_s = now_s
        self.num_resumes += 1
        body = {
            "request_id": self.request_id,
            "from_index": self.num_tokens,
            "reply": self._inbox,
        }
        await self._connection.publish(
            f"{RESUME}.{self.request_id}", json.dumps(body).encode(), reply=self._inbox
        )


async def _quiet(_error: Exception) -> None:
    """Say nothing: a server that is away is what the tests are about."""
