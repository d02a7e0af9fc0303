"""The length that a Matroska or WebM file announces: the only sign of a file that is cut off, whose frames just end.

No reader tells this length: FFmpeg logs a line and ends the video early.
"""

EBML, SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
START = 4096  # both elements begin within so many bytes


def announced_length(start: bytes) -> int | None:
    """Returns the length of a file in bytes, as its first bytes announce it (RFC 8794).

    Returns None for other formats, and for files that announce no length. A file is an EBML header and a segment, each
    of them an identifier of 4 bytes, a size, and that many bytes.
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
    """Returns the place and the length of the content of an element whose size stands `at`; None: an unknown length.

    The number of leading zero bits of the first byte is the number of further bytes of the size. A size of only one
    bits is an unknown length.
    """
    length = 9 - start[at].bit_length() if at < len(start) and start[at] else 9
    if length > 8 or at + length > len(start):
        return None
    value = int.from_bytes(start[at : at + length], "big") & ((1 << 7 * length) - 1)
    return None if value == (1 << 7 * length) - 1 else (at + length, value)
