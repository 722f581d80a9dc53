"""
Whether this scheduler is the active one, by its own clock. Pure: times come in as values.

The lease is an entry that fades `LEADER_TTL_S` after its last write. Its owner believes in it for
less than that, counted from when the write was sent: a process that was frozen finds the lease run
out before it says anything. It is then in doubt, and silent, until a write says who leads.
"""

from typing import Literal

from slipstream.shared.bus.leader import LEADER_TTL_S

State = Literal["standby", "active", "doubtful"]
Step = Literal["create", "renew"]

RENEW_S = 0.5
POLL_S = 0.2  # how often a standby tries
VALID_S = 0.75 * LEADER_TTL_S
# Absence means nothing for so long after a reconnect: the active one may not be back yet.
GRACE_S = 5.0
_TROUBLE_S = 5.0  # of storage that can't be asked, after which somebody serves without it
_HEARD_S = 3.0  # an active scheduler says once a second that it is there


class Leadership:
    """Owns the state; whoever speaks to the bucket says what came of each step."""

    def __init__(self) -> None:
        self.state: State = "standby"
        self.is_guarded = False  # by the lease; else there is no storage, or it is in trouble
        self.num_terms = 0  # begun so far
        self.epoch = 0
        self.revision = 0  # of our last write that was confirmed
        self.highest_seen = 0  # of all epochs
        self._valid_until = 0.0
        self._next_at = 0.0
        self._num_unconfirmed = 0  # writes since then that may have happened
        self._blind_until = 0.0
        self._trouble_since: float | None = None
        self._heard_at = float("-inf")

    @property
    def leads(self) -> bool:
        """Whether a term is on, if perhaps in doubt."""
        return self.state != "standby"

    def look(self, now: float) -> Step | None:
        """Return what is to be asked of the bucket now, after a look at the clock."""
        if self.state == "active" and self.is_guarded and now >= self._valid_until:
            self.state = "doubtful"
        if now < self._next_at or (not self.leads and now < self._blind_until):
            return None
        return "renew" if self.leads and self.revision else "create"

    def due_in_s(self, now: float) -> float:
        """Return after how long to look again: there is something to ask, or the lease runs out."""
        due_at = self._next_at if self.leads else max(self._next_at, self._blind_until)
        if self.state == "active" and self.is_guarded:
            due_at = min(due_at, self._valid_until)
        return due_at - now

    def is_sure(self, now: float) -> bool:
        """Tell whether anything may be sent."""
        return self.state == "active" and (not self.is_guarded or now < self._valid_until)

    def won(self, sent_at: float, revision: int) -> None:
        """Take note that our first write is there: a term begins, or is guarded from now on."""
        if self.epoch == 0:
            self.epoch = max(revision, self.highest_seen + 1)
        self._confirmed(sent_at, revision)

    def renewed(self, sent_at: float, revision: int) -> None:
        """Take note that a further write is there."""
        self._confirmed(sent_at, revision)

    def wrote_again(self, sent_at: float, revision: int) -> bool:
        """
        Take note that our entry had faded and is there again; False if others had one meanwhile.

        All writes are numbered, so a gap that our own lost ones don't explain is somebody else's.
        """
        if revision > self.revision + self._num_unconfirmed + 1:
            self.lost(sent_at)
            return False
        self._confirmed(sent_at, revision)
        return True

    def denied(self, now: float) -> None:
        """Take note that there is an entry: as standby that is as it should be."""
        self._trouble_since = None
        if self.leads:
            self.lost(now)
        self._next_at = now + POLL_S

    def lost(self, now: float) -> None:
        """Step down: somebody else leads, or has led since."""
        self.state = "standby"
        self.is_guarded = False
        self.epoch = self.revision = self._num_unconfirmed = 0
        self._next_at = now + POLL_S

    def unreachable(self, now: float, *, is_absent: bool, may_have_written: bool) -> None:
        """Take note that the storage can't be asked; `is_absent` says that there is none."""
        self._num_unconfirmed += may_have_written
        self._next_at = now + (POLL_S if self.leads else RENEW_S)
        if self._trouble_since is None:
            self._trouble_since = now
        has_lasted = is_absent or now - self._trouble_since >= _TROUBLE_S
        if has_lasted and now - self._heard_at >= _HEARD_S:
            self.num_terms += not self.leads
            self.state = "active"
            self.is_guarded = False

    def disconnected(self, now: float) -> None:
        """Take note that nothing can be asked: the lease runs on, and says nothing of others."""
        self._trouble_since = None
        self._next_at = now

    def reconnected(self, now: float) -> None:
        """Have the active one write at once, and a standby wait for it."""
        self._trouble_since = None
        self._next_at = now
        self._blind_until = now + GRACE_S

    def heard_active(self, now: float, epoch: int) -> None:
        """Take note that somebody else says it is active."""
        self._heard_at = now
        self.saw_epoch(epoch)

    def heard_leaving(self, now: float) -> None:
        """Take note that the active one has given up: a standby need not wait."""
        self._heard_at = float("-inf")
        if not self.leads:
            self._next_at = self._blind_until = now

    def saw_epoch(self, epoch: int) -> None:
        """Take note of an epoch that others have seen: ours will be higher."""
        self.highest_seen = max(self.highest_seen, epoch)

    def _confirmed(self, sent_at: float, revision: int) -> None:
        self.num_terms += not self.leads
        self.state = "active"
        self.is_guarded = True
        self.revision = revision
        self.highest_seen = max(self.highest_seen, self.epoch)
        self._num_unconfirmed = 0
        self._trouble_since = None
        self._valid_until = sent_at + VALID_S
        self._next_at = sent_at + RENEW_S
