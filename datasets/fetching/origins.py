"""The origin of each benchmark's data: origins.yaml, read and checked."""

import difflib
import functools
import re
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

from ctta_bench.errors import ConfigError
from ctta_bench.registry import canonical

TABLE = Path(__file__).with_name("origins.yaml")


class Archive(BaseModel):
    """A file to download; it unpacks to the folders `provides` in ROOT/`into`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    part: str
    file: str = Field(pattern=r"^[\w.-]+$")
    url: str = Field(pattern=r"^https?://")
    bytes: int | None = Field(ge=1)
    md5: str | None = Field(pattern=r"^[0-9a-f]{32}$")
    into: str
    provides: tuple[str, ...]
    group: int = Field(
        0, ge=0, description="levels of folders with their own checksum; 0: one checksum for all"
    )
    optional: bool = False

    @property
    def what_is_checked(self) -> str:
        """The checks of this file, in words."""
        size = f"{self.bytes:,} bytes" if self.bytes else "size unknown"
        return f"{size}, md5 {self.md5 or 'unknown, only the size is checked'}"


class Origin(BaseModel):
    """Where a benchmark's data come from: either `archives` or `by_hand`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    layout: str
    archives: tuple[Archive, ...] = ()
    by_hand: str | None = None
    under: tuple[str, ...] = ()
    md5: dict[str, str] = {}

    @property
    def folders(self) -> list[str]:
        """The top folders of the layout, under the data root."""
        if not self.archives:
            return [part.partition("/")[0] for part in self.layout.split(" and ")]
        names = [[*a.provides] if a.into == "." else [a.into] for a in self.archives]
        return list(dict.fromkeys(name for group in names for name in group))

    @property
    def bytes(self) -> int:
        """Total of the known sizes of the archives that are downloaded without --part."""
        return sum(archive.bytes or 0 for archive in self.chosen(()))

    def chosen(self, parts: tuple[str, ...]) -> tuple[Archive, ...]:
        """The archives with these part names (--part); without names, all that are not optional.

        Raises ConfigError for an unknown part.
        """
        known = {archive.part: archive for archive in self.archives}
        for part in parts:
            if part not in known:
                raise ConfigError(f"--part {part!r}: choose {', '.join(known)}.")
        return tuple(a for a in self.archives if (a.part in parts if parts else not a.optional))


@functools.cache
def origins() -> dict[str, Origin]:
    """All origins by benchmark name."""
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return {name: Origin.model_validate(entry) for name, entry in table.items()}


def find_origin(name: str) -> Origin:
    """The origin of a benchmark. Raises ConfigError that suggests close names."""
    table = origins()
    if canonical(name) not in table:
        close = difflib.get_close_matches(canonical(name), table, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"no data is known for {name!r}.{hint} `ctta-bench data list` shows all {len(table)}."
        )
    return table[canonical(name)]


def by_hand_sentence(name: str, root: Path) -> str:
    """How to get data that this command does not download, and the layout that they must have."""
    origin = find_origin(name)
    assert origin.by_hand is not None
    layout = re.sub(r"\s+", " ", origin.layout)
    return (
        f"{canonical(name)} is not downloaded by this command: {origin.by_hand}; unpack it so that "
        f"{root} holds {layout}."
    )
