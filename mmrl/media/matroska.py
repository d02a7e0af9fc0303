"""How long a Matroska or WebM file says that it is: what is cut off shows nowhere else, its frames just end."""

EBML, SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
START = 4096  # bytes in which both elements begin


def announced_length(start: bytes) -> int | None:
    """Bytes of the whole file, by its first ones; None for other formats, and for files that do not say it (RFC 8794).

    A file is an EBML header and a segment, each an identifier of 4 bytes, a size, and that many bytes.
    """
    if not start.startswith(EBML):
        return None
    header = _size(start, len(EBML))
    if header is None:
        return None
    segment = sum(header)
    if start[segment : segment + len(SEGMENT)] != SEGMENT:
        return None
    body = _size(start, segment + len(SEGMENT))
    return None if body is None else sum(body)


def _size(start: bytes, at: int) -> tuple[int, int] | None:
    """Where the content of an element begins whose size stands `at`, and how long it is; None where that is unknown.

    The zeros before the highest one of the first byte say how many more bytes the size has; all ones are unknown.
    """
    length = 9 - start[at].bit_length() if at < len(start) and start[at] else 9
    if length > 8 or at + length > len(start):
        return None
    value = int.from_bytes(start[at : at + length], "big") & ((1 << 7 * length) - 1)
    return None if value == (1 << 7 * length) - 1 else (at + length, value)
