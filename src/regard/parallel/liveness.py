"""Signs of life: a rank that is killed or stopped makes the others fail with its number, instead of wait for it."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import distributed as dist

from regard.errors import RankError
from regard.torch_private import get_default_store

__all__ = ["Liveness"]

_BEAT = 2.0  # seconds between signs of life
_SILENCE = 16.0  # seconds without one, after which a rank counts as stopped
_POLL = 0.5  # seconds between looks at the others
_FAILED = "regard/failed"


class Work(Protocol):
    """What is on its way, as `dist.Work` is."""

    def wait(self) -> object:
        """Return when it has arrived."""


class Liveness:
    """The signs of life of the ranks of the default process group, in its store.

    A thread of each process writes a number every two seconds, and reads those of the ranks that were waited for. Who
    waits for a rank that wrote none for 16 seconds, or whose connection is closed, raises and says so in the store, so
    that all others name the same rank. No other thread reads the store: one that rank 0 keeps stops with it.
    """

    _current: "Liveness | None" = None
    _lock = threading.Lock()

    def __init__(self, store: Any) -> None:
        self._store, self._rank, self._keeper = store, dist.get_rank(), _keeper_of(store)
        self._asked: frozenset[int] = frozenset()
        self._seen: dict[int, tuple[bytes, float]] = {}  # the last sign of each, and when it was new
        self._polled = time.monotonic()
        self._polling: float | None = None  # since when the store owes an answer
        self._store_is_lost = False
        self._failed: int | None = None
        threading.Thread(target=self._run, name="regard-liveness", daemon=True).start()

    @classmethod
    def of_this_process(cls) -> "Liveness":
        """The one of the process group that is initialized now."""
        with cls._lock:
            store = get_default_store()
            if cls._current is None or cls._current._store is not store:
                cls._current = cls(store)
            return cls._current

    def wait(self, work: "Work", ranks: Sequence[int]) -> None:
        """Wait until a message has arrived; `ranks` are those that it depends on.

        Raises:
            RankError: One of them is gone or stopped, or another rank found one that is.
        """
        failure: list[BaseException] = []
        done = threading.Event()

        def run() -> None:
            try:
                work.wait()
            except BaseException as error:  # handed to the thread that waits
                failure.append(error)
            done.set()

        threading.Thread(target=run, daemon=True).start()
        while not done.wait(_POLL):
            self._look_at(ranks)
        if failure:
            with self.names(ranks):
                raise failure[0]

    @contextlib.contextmanager
    def names(self, ranks: Sequence[int]) -> Iterator[None]:
        """Where a connection to one of these ranks is closed inside, raise an error that names the rank.

        Raises:
            RankError: One of them is gone, or another rank found one that is.
        """
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, RankError) or not _is_of_connection(error):
                raise
            self._fail(ranks[0] if len(ranks) == 1 else self._silent(ranks), "its connection was closed", error)

    def _look_at(self, ranks: Sequence[int]) -> None:
        """Raise where a rank is known to have failed, or is silent for too long."""
        self._asked |= set(ranks)
        if self._failed is not None:
            self._fail(self._failed, "another rank lost it", None)
        if self._store_is_silent():
            self._fail(ranks[0] if self._keeper is None else self._keeper, "it keeps the store, which is silent", None)
        for rank in ranks:
            sign, since = self._seen.get(rank, (b"", 0.0))
            if sign and self._polled - since > _SILENCE:  # who gave none yet may still be starting
                self._fail(rank, f"it gave no sign of life for {_SILENCE:.0f} seconds", None)

    def _store_is_silent(self) -> bool:
        """Whether the store is closed, or gave no answer for too long."""
        polling = self._polling
        return self._store_is_lost or (polling is not None and time.monotonic() - polling > _SILENCE)

    def _silent(self, ranks: Sequence[int]) -> int:
        """The rank that stopped giving signs, of several of which one closed its connection."""
        self._asked |= set(ranks)
        time.sleep(3 * _POLL)
        before = dict(self._seen)
        time.sleep(2 * _BEAT)
        return next((rank for rank in ranks if self._seen.get(rank) == before.get(rank)), ranks[0])

    def _fail(self, rank: int, why: str, cause: BaseException | None) -> None:
        if self._failed is not None:
            rank = self._failed
        elif self._store_is_silent():
            rank = rank if self._keeper is None else self._keeper
        else:
            try:
                rank = int(self._store.compare_set(_FAILED, "", str(rank)))
            except Exception:  # the rank that is gone has kept the store
                rank = rank if self._keeper is None else self._keeper
        if self._rank == self._keeper:
            time.sleep(4 * _POLL)  # until the others have read it: the store ends with this process
        raise RankError(
            f"rank {rank} is gone ({why}), so rank {self._rank} cannot go on: start the processes again, from the last "
            "checkpoint"
        ) from cause

    def _run(self) -> None:
        """Write signs of life, and read those of the others, for as long as there is a store."""
        count = 0
        try:
            while dist.is_initialized() and Liveness._current in (None, self):
                self._polling = time.monotonic()
                if count % round(_BEAT / _POLL) == 0:
                    self._store.set(f"regard/alive/{self._rank}", str(count))
                self._poll()
                self._polled, self._polling = time.monotonic(), None
                count += 1
                time.sleep(_POLL)
        except Exception:
            self._store_is_lost = True

    def _poll(self) -> None:
        """Read whether a rank has failed, and the signs of those that were waited for."""
        if self._failed is None and self._store.check([_FAILED]):
            self._failed = int(self._store.get(_FAILED))
        for rank in self._asked:
            key = f"regard/alive/{rank}"
            sign = self._store.get(key) if self._store.check([key]) else b""
            if sign != self._seen.get(rank, (b"", 0.0))[0]:
                self._seen[rank] = sign, time.monotonic()


def _keeper_of(store: Any) -> int | None:
    """The rank in whose process the store is; None where it is a file, or kept by what started the processes."""
    while isinstance(store, dist.PrefixStore):  # type: ignore[attr-defined]
        store = store.underlying_store
    kept = isinstance(store, dist.TCPStore) and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # type: ignore[attr-defined]
    return 0 if kept else None


def _is_of_connection(error: RuntimeError) -> bool:
    words = str(error).lower()
    return any(word in words for word in ("connection", "peer", "socket", "timed out", "broken pipe"))
