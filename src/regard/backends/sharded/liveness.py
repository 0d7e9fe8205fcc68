"""Signs of life: a rank that is killed or stopped makes the others fail with its number, instead of wait for it."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from torch import distributed as dist

from regard.errors import RankError
from regard.torch_private import get_default_store

__all__ = ["Liveness"]

_BEAT = 2.0  # seconds between signs of life
_SILENCE = 16.0  # seconds without one, after which a rank counts as stopped
_POLL = 0.5  # seconds between looks at the others while waiting
_FAILED = "regard/failed"


class Liveness:
    """The signs of life of the ranks of the default process group, in its store.

    A thread of each process writes a number every two seconds. Who waits for a rank that wrote none for 16 seconds, or
    whose connection is closed, raises and says so in the store, so that all others name the same rank.
    """

    _current: "Liveness | None" = None
    _lock = threading.Lock()

    def __init__(self, store: Any) -> None:
        self._store, self._rank = store, dist.get_rank()
        self._seen: dict[int, tuple[bytes, float]] = {}
        threading.Thread(target=self._beat, name="regard-liveness", daemon=True).start()

    @classmethod
    def of_this_process(cls) -> "Liveness":
        """The one of the process group that is initialized now."""
        with cls._lock:
            store = get_default_store()
            if cls._current is None or cls._current._store is not store:
                cls._current = cls(store)
            return cls._current

    def wait(self, work: "dist.Work", ranks: Sequence[int]) -> None:
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
        if self._store.check([_FAILED]):
            self._fail(int(self._store.get(_FAILED)), "another rank lost it", None)
        now = time.monotonic()
        for rank in ranks:
            key = f"regard/alive/{rank}"
            sign = self._store.get(key) if self._store.check([key]) else b""
            if sign != self._seen.get(rank, (None, now))[0]:
                self._seen[rank] = sign, now
            elif sign and now - self._seen[rank][1] > _SILENCE:  # who gave none yet may still be starting
                self._fail(rank, f"it gave no sign of life for {_SILENCE:.0f} seconds", None)

    def _silent(self, ranks: Sequence[int]) -> int:
        """The rank that stopped giving signs, of several of which one closed its connection."""
        before = {rank: self._sign(rank) for rank in ranks}
        time.sleep(2 * _BEAT)
        return next((rank for rank in ranks if self._sign(rank) == before[rank]), ranks[0])

    def _sign(self, rank: int) -> bytes:
        key = f"regard/alive/{rank}"
        sign: bytes = self._store.get(key) if self._store.check([key]) else b""
        return sign

    def _fail(self, rank: int, why: str, cause: BaseException | None) -> None:
        with contextlib.suppress(Exception):  # the rank that is gone may have had the store
            rank = int(self._store.compare_set(_FAILED, "", str(rank)))
        raise RankError(
            f"rank {rank} is gone ({why}), so rank {self._rank} cannot go on: start the processes again, from the last "
            "checkpoint"
        ) from cause

    def _beat(self) -> None:
        """Write signs of life for as long as there is a store to write to."""
        count = 0
        with contextlib.suppress(Exception):
            while dist.is_initialized() and Liveness._current in (None, self):
                self._store.set(f"regard/alive/{self._rank}", str(count))
                count += 1
                time.sleep(_BEAT)


def _is_of_connection(error: RuntimeError) -> bool:
    words = str(error).lower()
    return any(word in words for word in ("connection", "peer", "socket", "timed out", "broken pipe"))
