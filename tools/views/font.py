"""A bitmap font of 5 x 7 cells, drawn for this project: ASCII letters, digits, what units need.

Each glyph is seven rows of five cells, as two hexadecimal digits a row; the highest of the five
bits is the leftmost cell. Text is drawn enlarged, with one empty cell between characters.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

CELL_WIDTH, CELL_HEIGHT = 6, 7

_GLYPHS = {
    " ": "00000000000000",
    "0": "0e11131519110e",
    "1": "040c040404040e",
    "2": "0e11010204081f",
    "3": "1f02040201110e",
    "4": "02060a121f0202",
    "5": "1f101e0101110e",
    "6": "0608101e11110e",
    "7": "1f010204080808",
    "8": "0e11110e11110e",
    "9": "0e11110f01020c",
    "A": "0e11111f111111",
    "B": "1e11111e11111e",
    "C": "0e11101010110e",
    "D": "1e11111111111e",
    "E": "1f10101e10101f",
    "F": "1f10101e101010",
    "G": "0e11101713110f",
    "H": "1111111f111111",
    "I": "0e04040404040e",
    "J": "0702020202120c",
    "K": "11121418141211",
    "L": "1010101010101f",
    "M": "111b1515111111",
    "N": "11191513111111",
    "O": "0e11111111110e",
    "P": "1e11111e101010",
    "Q": "0e11111115120d",
    "R": "1e11111e141211",
    "S": "0f10100e01011e",
    "T": "1f040404040404",
    "U": "1111111111110e",
    "V": "11111111110a04",
    "W": "1111111515150a",
    "X": "11110a040a1111",
    "Y": "1111110a040404",
    "Z": "1f01020408101f",
    "a": "00000e010f110f",
    "b": "1010161911111e",
    "c": "00000e1010110e",
    "d": "01010d1311110f",
    "e": "00000e111f100e",
    "f": "0609081c080808",
    "g": "000f11110f010e",
    "h": "10101619111111",
    "i": "04000c0404040e",
    "j": "0200060202120c",
    "k": "10101214181412",
    "l": "0c04040404040e",
    "m": "00001a15151111",
    "n": "00001619111111",
    "o": "00000e1111110e",
    "p": "00001e111e1010",
    "q": "00000d130f0101",
    "r": "00001619101010",
    "s": "00000e100e011e",
    "t": "08081c08080906",
    "u": "0000111111130d",
    "v": "00001111110a04",
    "w": "0000111115150a",
    "x": "0000110a040a11",
    "y": "000011110f010e",
    "z": "00001f0204081f",
    ".": "00000000000c0c",
    ",": "000000000c0408",
    ":": "000c0c000c0c00",
    "/": "00010204081000",
    "%": "18190204081303",
    "+": "0004041f040400",
    "-": "0000001f000000",
    "(": "02040808080402",
    ")": "08040202020408",
    "?": "0e110102040004",
    "=": "00001f001f0000",
    "_": "0000000000001f",
    "\N{SUPERSCRIPT TWO}": "0c12040e000000",
}


@functools.lru_cache(maxsize=512)
def text_mask(text: str, scale: int) -> NDArray[np.float32]:
    """Return how much of each pixel a line of text covers.

    Args:
        text: characters that the font lacks become a question mark.
        scale: pixels of a cell.

    Returns:
        (7 scale, 6 scale len(text)) float32, 0 or 1.
    """
    cells = np.zeros((CELL_HEIGHT, CELL_WIDTH * max(len(text), 1)), np.float32)
    for position, character in enumerate(text):
        rows = bytes.fromhex(_GLYPHS.get(character, _GLYPHS["?"]))
        bits = np.unpackbits(np.frombuffer(rows, np.uint8)[:, None], axis=1)[:, 3:]
        cells[:, CELL_WIDTH * position : CELL_WIDTH * position + 5] = bits
    mask = np.kron(cells, np.ones((scale, scale), np.float32))
    mask.setflags(write=False)
    return mask
