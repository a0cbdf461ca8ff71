"""Download a file: resumable, checked, and under its final name only when it is complete.

Proxies come from the environment (`http_proxy`, `https_proxy`, `no_proxy`). Nothing is prompted.
"""

import http.client
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ctta_bench.datasets.io.files import CHUNK, Report, md5_of, writing
from ctta_bench.errors import DataError

TIMEOUT = 60.0  # seconds without a byte
ATTEMPTS = 5  # in a row without a new byte
# What a broken connection raises; OSError covers refusals, resets, time-outs and name look-ups.
_BROKEN = (OSError, http.client.HTTPException)


@dataclass(frozen=True)
class Remote:
    """A file on a server; size in bytes and md5 in hex, None if not published."""

    url: str
    size: int | None = None
    md5: str | None = None

    @property
    def host(self) -> str:
        """The server's name."""
        return urlsplit(self.url).netloc


def fetch(
    remote: Remote, target: Path, *, report: Report | None = None, pause: float = 2.0
) -> None:
    """Download `remote` to `target`; an interrupted download resumes from its `.part` file.

    pause: seconds before the first retry of a broken connection; each further pause is longer.
    Raises DataError if the server has no such file or a different one, if it cannot be reached, or
    if the disk is full.
    """
    part, best, failures = target.with_name(f"{target.name}.part"), -1, 0
    with writing(part):
        part.parent.mkdir(parents=True, exist_ok=True)
        if remote.size is not None and part.exists() and part.stat().st_size > remote.size:
            part.unlink()
    while not _is_whole(part, remote):
        try:
            if _transfer(remote, part, report):
                break
            reason = "the connection ended early"
        except _BROKEN as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        have = part.stat().st_size if part.exists() else 0
        failures = failures + 1 if have <= best else 1
        best = max(best, have)
        if failures >= ATTEMPTS:
            raise DataError(_gave_up(remote, target, have, reason))
        time.sleep(pause * failures)
    check(part, remote, report)
    with writing(target):
        part.replace(target)


def check(file: Path, remote: Remote, report: Report | None = None, *, delete: bool = True) -> None:
    """Compare size and md5 with the published ones. A wrong file is deleted, DataError raised."""
    size = file.stat().st_size
    wrong = ""
    if remote.size is not None and size != remote.size:
        wrong = f"has {size:,} bytes instead of {remote.size:,}"
    elif remote.md5 is not None and (found := md5_of(file, report)) != remote.md5:
        wrong = f"has the md5 {found} instead of {remote.md5}"
    if wrong:
        if delete:
            file.unlink()
        end = (
            "it was deleted: run the command again, or use another --mirror"
            if delete
            else "download it again"
        )
        raise DataError(f"{file}: {wrong}, so it is damaged or a different file; {end}.")


def _is_whole(part: Path, remote: Remote) -> bool:
    return remote.size is not None and part.exists() and part.stat().st_size == remote.size


def _transfer(remote: Remote, part: Path, report: Report | None) -> bool:
    """Append the missing bytes to `part`; returns whether the file is complete."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "ctta-bench", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        request = urllib.request.Request(remote.url, headers=headers)
        # A new opener: the module's own one remembers the proxies of its first use.
        response = urllib.request.build_opener().open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # no more bytes: it is complete, or a different file
            if remote.md5 is not None and md5_of(part) == remote.md5:
                return True
            part.unlink()
            return False
        if error.code in (408, 429) or error.code >= 500:
            raise  # may be temporary
        raise DataError(
            f"{remote.url}: the server answered {error.code} ({error.reason}); get the file in "
            "another way and give its folder with --mirror."
        ) from error
    with response:
        start = have if _resumes(response, have) else 0
        total = _total(response, start)
        _check_offer(remote, response, total)
        end = _store(response, part, start, total or remote.size or 0, report)
    return end == total if total is not None else True


def _resumes(response: Any, have: int) -> bool:
    """Whether the server sends only the rest; it may also send the whole file again."""
    described = response.headers.get("Content-Range", "")
    return response.status == 206 and described.startswith(f"bytes {have}-")


def _total(response: Any, start: int) -> int | None:
    length = response.headers.get("Content-Length")
    return start + int(length) if length is not None and length.isdigit() else None


def _check_offer(remote: Remote, response: Any, total: int | None) -> None:
    kind = response.headers.get_content_type()
    is_page = kind == "text/html"  # an error page or a form instead of the file
    if is_page or (total is not None and remote.size is not None and total != remote.size):
        wanted = f"{remote.size:,} bytes" if remote.size is not None else "an archive"
        offered = f"{total:,} bytes" if total is not None else "a file of unknown size"
        raise DataError(
            f"{remote.url}: the server offers {offered} ({kind}) instead of {wanted}; get the file "
            "in another way and give its folder with --mirror."
        )


def _store(response: Any, part: Path, start: int, total: int, report: Report | None) -> int:
    position = start
    with writing(part):
        # Unbuffered, so that a full disk raises an error at once and not when the file is closed.
        file = part.open("r+b" if start else "wb", buffering=0)
    with file:
        file.seek(start)
        file.truncate()
        while chunk := response.read(CHUNK):
            rest = memoryview(chunk)
            with writing(part):
                while rest:
                    rest = rest[file.write(rest) :]
            position += len(chunk)
            if report is not None:
                report(position, total)
    return position


def _gave_up(remote: Remote, target: Path, have: int, reason: str) -> str:
    of = f" of {remote.size:,}" if remote.size is not None else ""
    return (
        f"{remote.url}: could not be fetched ({reason}); {have:,}{of} bytes are there, and the "
        f"same command resumes from them; or give a folder that holds {target.name} with --mirror."
    )
