"""Files as accidents and strangers alter them."""

from __future__ import annotations

import gzip

from hypothesis import strategies as st

TOKENS = [
    *(bytes([value]) for value in (0, 1, 8, 10, 13, 32, 34, 39, 44, 45, 58, 123, 125, 127, 128, 255)),
    *(
        b"nan",
        b"inf",
        b"-1",
        b"1e999",
        b"0x10",
        b"99999999999999999999",
        b"\xff\xfe",
        b"\xc3\x28",
        b"\t",
        b"\n\n",
        b'""',
        b"[]" * 50,
    ),
    *(
        "١٢".encode(),
        "\u2028".encode(),
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"PK\x03\x04",
        b"\x1f\x8b\x08",
        b"<html>",
    ),
]


@st.composite
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    """Return `content` after one to four alterations: cut, flipped bits, removed, doubled, swapped or added parts."""
    altered = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(altered) - 1, 0)))
        end = min(len(altered), place + draw(st.sampled_from([1, 1, 2, 4, 16, 300])))
        match draw(
            st.sampled_from(
                ["cut", "flip", "flip", "flip", "token", "token", "token", "out", "double", "swap", "value", "append"]
            )
        ):
            case "cut":
                del altered[place:]
            case "flip" if altered:
                altered[place] ^= 1 << draw(st.integers(0, 7))
            case "token":
                altered[place:place] = draw(st.sampled_from(TOKENS))
            case "out":
                del altered[place:end]
            case "double":
                altered[place:place] = altered[place:end]
            case "swap":
                altered[place:end] = altered[place:end][::-1]
            case "value":
                token = draw(st.sampled_from(TOKENS))
                altered[place : place + len(token)] = token
            case "append":
                altered += draw(st.sampled_from(TOKENS)) * draw(st.sampled_from([1, 1, 100]))
    return bytes(altered)


@st.composite
def zipped(draw: st.DrawFn, content: bytes) -> tuple[bytes, bytes | None]:
    """A gzip file of altered content, with the content; or an altered gzip file of `content`, with None."""
    if draw(st.booleans()):
        inside = draw(mutated(content))
        return gzip.compress(inside, 1, mtime=0), inside
    return draw(mutated(gzip.compress(content, 1, mtime=0))), None
