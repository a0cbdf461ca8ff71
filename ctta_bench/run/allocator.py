"""Settings of the memory allocator: whether a process reuses freed memory."""

import ctypes
import functools
import os
import sys

# Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


@functools.cache
def reuse_freed_memory() -> bool:
    """Let this process reuse freed blocks of any size; returns whether that is set.

    By default the GNU C library requests each block above 32 MB from the system, which clears it
    page by page: on a CPU with large batches that happens for the activations of every layer in
    every step. Nothing is changed with other C libraries, or if the user has set a variable
    MALLOC_... .
    """
    if not sys.platform.startswith("linux") or any(k.startswith("MALLOC_") for k in os.environ):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    kept = library.mallopt(_M_MMAP_MAX, 0) and library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    return bool(kept)
