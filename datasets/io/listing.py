"""What lies in a folder of images: the images, and what is not read.

Without torch: worker processes import this too.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

Image.init()
_STILL_IMAGES = {
    "PNG", "JPEG", "MPO", "BMP", "DIB", "WEBP", "TIFF", "PPM", "GIF", "TGA", "JPEG2000", "AVIF",
}  # fmt: skip
# Files with these suffixes are read: those of still images that this Pillow can open.
SUFFIXES = frozenset(
    suffix
    for suffix, kind in Image.registered_extensions().items()
    if kind in _STILL_IMAGES and kind in Image.OPEN
)
# Suffixes of images: such files are counted and named if they are not read.
_UNREAD = frozenset(
    {
        ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm",
        ".pbm", ".pnm", ".gif", ".tga", ".jp2", ".avif", ".heic", ".heif", ".hif", ".jxl", ".svg",
        ".psd", ".exr", ".hdr", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2",
        ".ico", ".pcx", ".xbm", ".xpm", ".eps", ".qoi", ".dds", ".sgi", ".ras", ".fits", ".dcm",
    }
)  # fmt: skip
_SYSTEM = frozenset(
    name.casefold()
    for name in (
        "__MACOSX", "__pycache__", "lost+found", "@eaDir", "@tmp", "@Recycle", "#recycle",
        "#snapshot", "$RECYCLE.BIN", "System Volume Information", "Network Trash Folder",
    )
)  # fmt: skip
NAMED = 3  # files that a note names


@dataclass(frozen=True)
class Listing:
    """Paths relative to a folder, sorted.

    images: read. passed_over: files that look like images and are not read. left_out: hidden
    folders and those of operating systems.
    """

    images: list[str] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def listing(folder: Path) -> Listing:
    """The images of a folder and of all its subfolders; symbolic links are followed."""
    found = Listing()
    _walk(folder, "", found, ())
    for names in (found.images, found.passed_over, found.left_out):
        names.sort()
    return found


def _walk(folder: Path, inside: str, found: Listing, above: tuple[str, ...]) -> None:
    above = (*above, os.path.realpath(folder))
    with os.scandir(folder) as entries:  # a training set has a million of them
        for entry in entries:
            name, suffix = entry.name, Path(entry.name).suffix.lower()
            path = inside + name
            if suffix in SUFFIXES and not name.startswith("."):
                found.images.append(path)
            elif entry.is_dir():
                if is_left_out(name):
                    found.left_out.append(path)
                elif os.path.realpath(entry.path) not in above:  # else a link leads in a circle
                    _walk(Path(entry.path), f"{path}/", found, above)
            elif looks_like_an_image(Path(entry.path)):
                found.passed_over.append(path)


def is_left_out(name: str) -> bool:
    """Whether a folder's name is hidden, or one that operating systems make."""
    return name.startswith(".") or name.casefold() in _SYSTEM


def looks_like_an_image(file: Path) -> bool:
    """Whether a file has a suffix of images, also `a.jpg.bak`, or is an image without a suffix."""
    if file.name.startswith("."):  # `._a.png` is a file of macOS, `.a.png.12.tmp` one of ours
        return not file.name.startswith("._") and file.suffix.lower() in _UNREAD
    if file.suffix:
        return any(suffix.lower() in _UNREAD | SUFFIXES for suffix in file.suffixes)
    try:
        with Image.open(file):
            return True
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return False


def image_names(folder: Path) -> list[str]:
    """The images of a folder and of its subfolders, sorted."""
    return listing(folder).images


def subfolders(folder: Path) -> list[str]:
    """Sorted names of the folders in `folder`, without those that are left out."""
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not is_left_out(p.name))


def left_out(folder: Path) -> list[str]:
    """Sorted names of the hidden and system folders in `folder`."""
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and is_left_out(p.name))


def strays(folder: Path) -> list[str]:
    """Sorted names of the images that lie directly in a folder of folders, and are not read."""
    return sorted(p.name for p in folder.iterdir() if p.is_file() and looks_like_an_image(p))


@dataclass(frozen=True)
class ClassTree:
    """The images FOLDER/CLASS/...: `classes` has the Listing of each class folder.

    Classes are sorted; paths are relative to the class folder. strays, left_out: of FOLDER itself.
    """

    classes: dict[str, Listing]
    strays: Sequence[str] = ()
    folders: Sequence[str] = ()

    def with_images(self) -> "ClassTree":
        """Without the class folders that hold no images; what they hold instead is still told."""
        empty = ClassTree(
            {n: of_class for n, of_class in self.classes.items() if not of_class.images}
        )
        return ClassTree(
            {n: of_class for n, of_class in self.classes.items() if of_class.images},
            [*self.strays, *empty._all("passed_over")],
            [*self.folders, *empty._all("left_out")],
        )

    @property
    def images(self) -> list[str]:
        """CLASS/IMAGE, sorted by class, then by path."""
        return list(self._all("images"))

    @property
    def passed_over(self) -> list[str]:
        """Files that look like images and are not read."""
        return [*self.strays, *self._all("passed_over")]

    @property
    def left_out(self) -> list[str]:
        """Hidden and system folders."""
        return [*self.folders, *self._all("left_out")]

    def _all(self, kind: str) -> Iterator[str]:
        for name, of_class in self.classes.items():
            yield from (f"{name}/{path}" for path in getattr(of_class, kind))


def class_tree(folder: Path, only: Collection[str] | None = None) -> ClassTree:
    """The class folders of a folder (of those named in `only`, if given) and their images."""
    names = [name for name in subfolders(folder) if only is None or name in only]
    return ClassTree(
        {name: listing(folder / name) for name in names}, strays(folder), left_out(folder)
    )


def passed_over_note(files: Sequence[str]) -> str | None:
    """The footnote on files that look like images and are not read; None without such files."""
    if not files:
        return None
    named = ", ".join(files[:NAMED])
    more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
    what = "file looks" if len(files) == 1 else "files look"
    verb = "is" if len(files) == 1 else "are"
    return f"{len(files)} {what} like an image and {verb} not read ({named}{more})"
