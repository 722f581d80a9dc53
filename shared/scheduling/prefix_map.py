"""
Which blocks each host holds, by what their KV managers tell. Pure.

Hints: an event may be lost, and what is told is a moment old. A lease tells the truth.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slipstream.shared.ids import HostId
from slipstream.shared.kv.block_hash import NUM_BITS
from slipstream.shared.messages.kv import KnownBlocks
from slipstream.shared.messages.reports import KvEvent
from slipstream.shared.scheduling.prompt_hashes import PromptHashes

_HASH_BYTES = NUM_BITS // 8
MAX_NUM_BLOCKS = 1_000_000  # of a host; what is beyond is not known: some 100 MB
MAX_NUM_BUFFERED = 1000  # events while the whole set is on its way


@dataclass
class _Gathering:
    """The whole set of a host on its way: what has come of it, and of events meanwhile."""

    number: int | None = None  # of the event that the first answer had seen
    known: set[bytes] = field(default_factory=set)
    events: list[KvEvent] = field(default_factory=list)


@dataclass
class _Host:
    epoch: int
    number: int = 0  # of the last event
    known: set[bytes] = field(default_factory=set)
    is_stale: bool = False  # something was missed
    gathering: _Gathering | None = None

    def misses(self, event: KvEvent) -> bool:
        """Tell whether an event between the last one and this did not come."""
        has_seen = self.number
        if self.gathering is not None and self.gathering.number is not None:
            has_seen = max(has_seen, self.gathering.number)
        return event.number > has_seen + 1


class PrefixMap:
    """
    Takes events in, and whole sets where they leave gaps.

    Events change what is known at once. A host is stale from a gap on until its whole set has come:
    `begin`, then `gather` each part, first to last.
    """

    def __init__(self, max_num_blocks: int = MAX_NUM_BLOCKS) -> None:
        self._max_num_blocks = max_num_blocks
        self._hosts: dict[HostId, _Host] = {}
        self.version = 0  # grows with each change

    def event(self, event: KvEvent) -> None:
        """Take an event in; old ones and repeats change nothing."""
        host = self._hosts.get(event.host_id)
        if host is None or host.epoch < event.epoch:
            host = self._hosts[event.host_id] = _Host(event.epoch)
            self.version += 1
        if event.epoch < host.epoch or event.number <= host.number:
            return
        if host.misses(event):
            host.is_stale, host.gathering = True, None
        host.number = event.number
        if event.stored or event.removed:
            self._apply(host.known, event)
            self.version += 1
        if host.gathering is not None:
            host.gathering.events.append(event)
            if len(host.gathering.events) > MAX_NUM_BUFFERED:
                host.gathering = None  # still stale: another try

    def is_stale(self, host_id: HostId) -> bool:
        """Tell whether a host's whole set is needed."""
        host = self._hosts.get(host_id)
        return host is not None and host.is_stale

    def begin(self, host_id: HostId) -> bool:
        """Begin to take a host's whole set in; False where that is not needed any more."""
        host = self._hosts.get(host_id)
        if host is None or not host.is_stale:
            return False
        host.gathering = _Gathering()
        return True

    def gather(self, part: KnownBlocks) -> bool:
        """Take the next part of a host's whole set; False when it is of no use any more."""
        host = self._hosts.get(part.host_id)
        if host is None or host.gathering is None or host.epoch != part.epoch:
            return False
        gathering = host.gathering
        if gathering.number is None:
            gathering.number = part.number
        for start in range(0, len(part.hashes), _HASH_BYTES):
            if len(gathering.known) < self._max_num_blocks:
                gathering.known.add(part.hashes[start : start + _HASH_BYTES])
        if part.next_block_id is None:
            self._finish(host, gathering, gathering.number)
        return True

    def forget(self, host_id: HostId) -> None:
        """Forget a host whose manager is gone."""
        if self._hosts.pop(host_id, None) is not None:
            self.version += 1

    def num_cached_tokens(
        self, prompt: PromptHashes, kv_class_of: Callable[[HostId], str]
    ) -> Mapping[HostId, int]:
        """
        Return how many tokens of a prompt each host holds, where it holds any.

        Hosts without a class of KV serve nobody now.
        """
        kv_classes = {
            host_id: kv_class
            for host_id, host in self._hosts.items()
            if host.known and (kv_class := kv_class_of(host_id))
        }
        asked = (self.version, kv_classes)
        if prompt.found is None or prompt.found[0] != asked:
            found = (
                (host_id, prompt.num_cached_tokens(kv_class, self._hosts[host_id].known))
                for host_id, kv_class in kv_classes.items()
            )
            prompt.found = (asked, {host_id: number for host_id, number in found if number})
        return prompt.found[1]

    def num_blocks(self) -> Mapping[HostId, int]:
        """Return how many blocks of each host are known."""
        return {host_id: len(host.known) for host_id, host in self._hosts.items()}

    def _finish(self, host: _Host, gathering: _Gathering, number: int) -> None:
        for event in gathering.events:
            # What the first part had seen all others have too.
            if event.number > number:
                self._apply(gathering.known, event)
        host.known = gathering.known
        host.number = max(host.number, number)
        host.is_stale, host.gathering = False, None
        self.version += 1

    def _apply(self, known: set[bytes], event: KvEvent) -> None:
        known.difference_update(event.removed)
        # A hole in a chain only makes the chain shorter.
        known.update(event.stored[: max(0, self._max_num_blocks - len(known))])
