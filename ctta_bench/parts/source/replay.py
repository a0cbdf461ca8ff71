"""Labelled source images again and again, beside the stream: what RMT learns from.

Source access during the stream is that of a method of labelled access which keeps a `Replay` in
`prepare`. Its state is the place in the source set, never an image.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor


class Replay:
    """Batches of source data (as `prepare` gets it), epoch after epoch, each in its own order."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.size = self.epoch = self.batch = 0
        self._open: Iterator[tuple[Tensor, Tensor]] | None = None

    def draw(self, size: int) -> tuple[Tensor, Tensor]:
        """Images [n, 3, H, W] and labels int64 [n]; n is the first `size` ever asked for.

        It is less at the end of an epoch.
        """
        self.size = self.size or size
        if (found := self._next()) is None:
            self.epoch, self.batch, self._open = self.epoch + 1, 0, None
            found = self._next()
        assert found is not None  # prototypes have been made of these images
        self.batch += 1
        return found

    def _next(self) -> tuple[Tensor, Tensor] | None:
        if self._open is None:
            self._open = iter(
                self.source.labelled_batches(self.size, epoch=self.epoch, first=self.batch)
            )
        return next(self._open, None)

    def state_dict(self) -> dict[str, int]:
        """The place in the source set."""
        return {"size": self.size, "epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a place."""
        self.size, self.epoch, self.batch = state["size"], state["epoch"], state["batch"]
        self._open = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Replay":
        """A replay at the same place; an open batch cannot be copied."""
        other = Replay(self.source)
        other.load_state_dict(self.state_dict())
        return other
