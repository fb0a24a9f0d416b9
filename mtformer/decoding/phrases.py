"""Finding phrases in text that comes piece by piece, however the pieces cut it (Aho and Corasick 1975).

The automaton reads the bytes that pieces stand for, so a phrase is found in any segmentation, byte pieces included.

S states, V vocabulary, L bytes of the longest piece.
"""

import re
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FOUND = -1
SPACE = "▁"
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
UNKNOWN_PIECE, UNKNOWN_TEXT = "<unk>", " ⁇ "


def piece_bytes(piece: str, is_control: bool = False) -> bytes:
    """What a SentencePiece piece adds to the text, in UTF-8."""
    if is_control:
        return b""
    if piece == UNKNOWN_PIECE:
        return UNKNOWN_TEXT.encode()
    byte = BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(SPACE, " ").encode()


def automaton(phrases: Sequence[bytes]) -> npt.NDArray[np.int32]:
    """(S, 256): the state after each byte, FOUND when a phrase is complete; state 0 is the beginning."""
    trie: list[dict[int, int]] = [{}]
    ends = set()
    for phrase in phrases:
        state = 0
        for byte in phrase:
            if byte not in trie[state]:
                trie.append({})
                trie[state][byte] = len(trie) - 1
            state = trie[state][byte]
        ends.add(state)
    next_Sb = np.zeros((len(trie), 256), dtype=np.int32)
    fail = [0] * len(trie)
    queue = deque([0])
    while queue:
        state = queue.popleft()
        if state:
            next_Sb[state] = next_Sb[fail[state]]
        for byte, child in trie[state].items():
            fail[child] = int(next_Sb[state, byte])  # the state of its longest ending that begins a phrase, too
            if fail[child] in ends:
                ends.add(child)
            next_Sb[state, byte] = child
            queue.append(child)
    return np.where(np.isin(next_Sb, list(ends)), FOUND, next_Sb).astype(np.int32)


def over_vocabulary(next_Sb: npt.NDArray[np.int32], pieces: Sequence[bytes]) -> npt.NDArray[np.int32]:
    """(S, V): the state after each piece, FOUND when a phrase is complete within it."""
    lengths_V = np.array([len(piece) for piece in pieces])
    bytes_VL = np.zeros((len(pieces), max(1, int(lengths_V.max(initial=0)))), dtype=np.int32)
    for number, piece in enumerate(pieces):
        bytes_VL[number, : len(piece)] = list(piece)
    state_SV = np.repeat(np.arange(len(next_Sb), dtype=np.int32)[:, None], len(pieces), axis=1)
    for place in range(bytes_VL.shape[1]):
        goes_on_SV = (state_SV != FOUND) & (place < lengths_V)
        state_SV = np.where(goes_on_SV, next_Sb[state_SV, bytes_VL[:, place]], state_SV)
    return state_SV
