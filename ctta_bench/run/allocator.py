"""Settings of the memory allocator: what a process does with blocks that it freed."""

import ctypes
import functools
import os
import sys

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


@functools.cache
def reuse_freed_memory() -> bool:
    """Let this process use blocks again that it freed, whatever their size; whether it does now.

    The GNU C library maps each block above 32 MB anew, and the system clears it page by page: with
    the activations of large batches on a CPU, in every layer of every step. Elsewhere nothing is
    changed, nor where the user has set a variable MALLOC_... that says how it should be.
    """
    if not sys.platform.startswith("linux") or any(k.startswith("MALLOC_") for k in os.environ):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    kept = library.mallopt(_M_MMAP_MAX, 0) and library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    return bool(kept)
