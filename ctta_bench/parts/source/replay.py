"""Replay of labelled source images during the stream (RMT).

A method with labelled source access makes a `Replay` in `prepare`. Its state is the position in the
source set, without images.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor


class Replay:
    """Batches of the source data of `prepare`, epoch after epoch, each in its own order."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.size = self.epoch = self.batch = 0
        self._open: Iterator[tuple[Tensor, Tensor]] | None = None

    def draw(self, size: int) -> tuple[Tensor, Tensor]:
        """The next images [n, 3, H, W] and labels int64 [n].

        n is the `size` of the first call, or less at the end of an epoch.
        """
        self.size = self.size or size
        if (found := self._next()) is None:
            self.epoch, self.batch, self._open = self.epoch + 1, 0, None
            found = self._next()
        assert found is not None  # `prepare` made prototypes of these images
        self.batch += 1
        return found

    def _next(self) -> tuple[Tensor, Tensor] | None:
        if self._open is None:
            self._open = iter(
                self.source.labelled_batches(self.size, epoch=self.epoch, first=self.batch)
            )
        return next(self._open, None)

    def state_dict(self) -> dict[str, int]:
        """The position in the source set."""
        return {"size": self.size, "epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a position."""
        self.size, self.epoch, self.batch = state["size"], state["epoch"], state["batch"]
        self._open = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Replay":
        """A replay at the same position; an open iterator cannot be copied."""
        other = Replay(self.source)
        other.load_state_dict(self.state_dict())
        return other
