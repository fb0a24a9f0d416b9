"""Recognize what a file contains by its first bytes, because names of downloaded or exported files are often wrong."""

import bz2
import csv
import json
import lzma
import re
import unicodedata
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path

from mtformer.enums import StrEnum
from mtformer.errors import DataError

HEAD_BYTES = 1 << 16
"""Number of bytes at the start of a file by which its content is recognized."""

TAR_BYTES = 512
"""Size of the header of a tar archive (POSIX.1-1988)."""

MIN_LINES = 2
"""Minimum number of lines of a CSV file without which it is not recognized."""

MIN_INVALID_LINES = 3
"""Minimum number of lines that are not UTF-8, without any other line beyond ASCII, in a file in another encoding."""

MIN_INVALID_SHARE = 0.05
"""Minimum share of these lines; a few of them in ASCII text are faults of these lines."""

MIN_OLD_LINE_ENDS = 3
"""Minimum number of carriage returns in a file without line feeds for lines that end with them."""

MIN_NUL_SHARE = 0.03
"""Minimum share of NUL bytes in UTF-16 text whose bytes are also UTF-8 with control characters."""

MIN_ASCII_NUL_SHARE = 0.25
"""Minimum share of NUL bytes in UTF-16 text whose bytes are also UTF-8 without other control characters."""

BOM = b"\xef\xbb\xbf"
"""Byte order mark of UTF-8."""


class Content(StrEnum):
    """Content of a file that is not plain text in UTF-8; the value names it in messages."""

    GZIP = "a gzip file"
    XZ = "an xz file"
    ZSTD = "a zstd file"
    BZIP2 = "a bzip2 file"
    TAR = "a tar archive"
    ZIP = "a ZIP archive"
    OFFICE = "a document of an office program (such as .xlsx or .docx)"
    OLD_OFFICE = "a document of an old office program (such as .xls or .doc)"
    ARCHIVE = "an archive (7z or RAR)"
    PARQUET = "a Parquet file"
    ARROW = "an Arrow file"
    SQLITE = "an SQLite database"
    PDF = "a PDF document"
    RTF = "an RTF document"
    NUMPY = "a NumPy array"
    MEDIA = "an image, audio or video file"
    PROGRAM = "a program or library"
    UTF_16 = "text in UTF-16"
    UTF_32 = "text in UTF-32"
    OTHER_ENCODING = "text in another encoding than UTF-8 (such as Windows-1252, ISO-8859-1 or Shift_JIS)"
    OLD_LINE_ENDS = "text with the line ends of old systems (\\r)"
    LFS = "a Git LFS pointer, not the file that it points to"
    ANNEX = "a git-annex pointer, not the file that it points to"
    HTML = "an HTML page"
    TMX = "a translation memory (TMX)"
    XML = "an XML document"
    JSON_LINES = "JSON lines"
    JSON_ARRAY = "one JSON array"
    JSON_DOCUMENT = "one JSON object over several lines"
    CSV = "CSV (separated by commas or semicolons)"


MARKUP = (Content.HTML, Content.TMX, Content.XML)
"""Contents that are text with tags."""

SIGNATURES: dict[bytes, Content] = {
    rb"\x1f\x8b": Content.GZIP,
    rb"\xfd7zXZ\x00": Content.XZ,
    rb"\x28\xb5\x2f\xfd": Content.ZSTD,
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": Content.BZIP2,
    rb"PK\x03\x04.{26}(\[Content_Types\]\.xml|docProps/|_rels/|xl/|word/|ppt/|mimetypeapplication/)": Content.OFFICE,
    rb"PK(\x03\x04|\x05\x06)": Content.ZIP,
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": Content.OLD_OFFICE,
    rb"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07": Content.ARCHIVE,
    rb".{257}ustar": Content.TAR,
    rb"PAR1\x15": Content.PARQUET,
    rb"ARROW1\x00|\xff\xff\xff\xff..\x00\x00\x10\x00\x00\x00": Content.ARROW,
    rb"SQLite format 3\x00": Content.SQLITE,
    rb"%PDF-\d": Content.PDF,
    rb"\{\\rtf\d": Content.RTF,
    rb"\x93NUMPY": Content.NUMPY,
    rb"\x89PNG\r\n|\xff\xd8\xff|GIF8[79]a|ID3[\x02-\x04]\x00|OggS\x00|RIFF....(WAVE|AVI |WEBP)": Content.MEDIA,
    rb"\x7fELF": Content.PROGRAM,
    rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff": Content.UTF_32,
    rb"\xff\xfe|\xfe\xff": Content.UTF_16,
    rb"version https://git-lfs\.github\.com/spec/": Content.LFS,
    rb"/annex/objects/": Content.ANNEX,
}
"""Regular expressions for the first bytes of formats, according to their specifications; the first one that matches
counts. Archives of office programs are recognized by the name of their first file."""

COMPRESSION_OF = {".gz": Content.GZIP, ".xz": Content.XZ, ".zst": Content.ZSTD, ".bz2": Content.BZIP2}
"""Compression by the suffix of the file name."""

OTHER_STARTS = {
    Content.XZ: re.compile(rb"\x5d\x00\x00"),
    Content.ZSTD: re.compile(rb"[\x50-\x5f]\x2a\x4d\x18"),
}
"""Other starts of compressed files: the old LZMA format, and skippable frames of zstd (RFC 8878, section 3.1.2)."""

SPREADSHEET_REMEDY = "save the sheet as tab-separated text in UTF-8"
EXTRACT_REMEDY = "extract the text files from it first"
CONVERT_REMEDY = "convert it to plain text"
ICONV_REMEDY = "convert it with `iconv -f ENCODING -t UTF-8`"
REMEDIES = {
    Content.TAR: f"{EXTRACT_REMEDY} (tar -xf)",
    Content.ZIP: f"{EXTRACT_REMEDY} (unzip)",
    Content.OFFICE: SPREADSHEET_REMEDY,
    Content.OLD_OFFICE: SPREADSHEET_REMEDY,
    Content.ARCHIVE: EXTRACT_REMEDY,
    Content.PARQUET: "give its folder as `dataset` in a config, or convert it to JSON lines",
    Content.ARROW: "give its folder as `dataset` in a config, or convert it to JSON lines",
    Content.SQLITE: "export the table as tab-separated text in UTF-8",
    Content.UTF_16: "convert it with `iconv -f UTF-16 -t UTF-8`",
    Content.UTF_32: "convert it with `iconv -f UTF-32 -t UTF-8`",
    Content.OTHER_ENCODING: f"{ICONV_REMEDY} (Windows-1252 for most files in Western European languages)",
    Content.OLD_LINE_ENDS: "convert it with `tr '\\r' '\\n'`",
    Content.LFS: "download the file with `git lfs pull`",
    Content.ANNEX: "download the file with `git annex get`",
    Content.HTML: "check that the download succeeded; `mtformer translate --html` translates pages",
    Content.TMX: "`mtformer init` and `mtformer adapt` read it, if its name ends with .tmx; else convert it to TSV",
    Content.XML: "extract the text to a plain file",
    Content.JSON_LINES: "give it a name that ends with .jsonl, or name it as `jsonl` in a config",
    Content.JSON_ARRAY: "write one object per line to a .jsonl file, for example with `jq -c '.[]'`",
    Content.JSON_DOCUMENT: "write one object per line to a .jsonl file, for example with `jq -c`",
    Content.CSV: "save it as tab-separated text, without quotes around the cells",
}
"""Remedies in messages about files with these contents; `CONVERT_REMEDY` for all others."""

HTML_START = re.compile(rb"<!doctype\s+html|<(html|head|body)[\s>]", re.IGNORECASE)
"""Start of an HTML page without an XML declaration and comments."""

XML_START = re.compile(rb"<\?xml\s|<!doctype\s|<(tmx|xliff|srcset|refset|tstset|mteval)[\s>]", re.IGNORECASE)
"""Start of an XML document, or of a test set in the SGML or XML format of WMT."""

TMX_ELEMENT = re.compile(rb"<(!doctype\s+)?tmx[\s>]", re.IGNORECASE)
"""Root element of a translation memory, or its document type."""

ARRAY_START = re.compile(rb"\[\s*(\{\s*\"|\[\s*\")")
"""Start of a JSON array of objects or arrays."""

OBJECT_START = re.compile(rb"\{\s*\"([^\"\\\n]|\\.)+\"\s*:")
"""Start of a JSON object with at least one key."""

DOCUMENT_START = re.compile(rb"\{\s*\n\s*\"([^\"\\\n]|\\.)+\"\s*:")
"""Start of a JSON object of which the first line has only its bracket."""

NOT_TEXT = ("Cc", "Cn", "Co", "Cs")
"""Unicode categories that text does not contain, except for line ends and tabs."""


def content_of(head: bytes) -> Content | None:
    """Return the content of a file by its first bytes; None for plain text in UTF-8, and for anything unknown.

    CSV is recognized by `is_csv` only, because plain text may have as many commas in each line.
    """
    return _binary(head) or _text_content(head)


def _text_content(head: bytes) -> Content | None:
    return _wide_encoding(head) or _markup(head) or _json(head) or _other_encoding(head) or _old_line_ends(head)


def _binary(head: bytes) -> Content | None:
    """Return the content of a file that starts with one of the `SIGNATURES`."""
    for signature, content in SIGNATURES.items():
        if re.match(signature, head, re.DOTALL):
            return content
    return None


def require_content(path: str, head: bytes, accepted: Collection[Content]) -> None:
    """Raise DataError for a file with a content that is not accepted.

    Args:
        path: name of the file, for messages.
        head: its first bytes, after decompression.
        accepted: contents that the reader of the file understands; `CSV` if lines without tabs are accepted.
    """
    content = content_of(head)
    if content is None and Content.CSV not in accepted and is_csv(head):
        content = Content.CSV
    if content is not None and content not in accepted:
        raise DataError(f"{path}: contains {content}, which cannot be read here; {remedy_for(content)}")


def require_compression(path: str, suffix: str, head: bytes) -> None:
    """Raise DataError if a file is compressed in another way than its name says.

    Args:
        path: name of the file.
        suffix: suffix of its name for the compression; "" without one.
        head: its first bytes; an empty file is accepted.
    """
    content = _binary(head)
    compression = COMPRESSION_OF.get(suffix)
    if not head or content == compression:
        return
    if compression in OTHER_STARTS and OTHER_STARTS[compression].match(head):
        return

    if content is not None and content in COMPRESSION_OF.values():
        if _is_tar_inside(head):
            raise DataError(
                f"{path}: contains a compressed tar archive, which cannot be read here; {REMEDIES[Content.TAR]}"
            )
        raise DataError(f"{path}: contains {content}, but its name says otherwise; {_renaming(path, suffix, content)}")
    if compression is not None:
        ending = f"although its name ends with {suffix}"
        other = content or _text_content(head)
        if other is not None:
            raise DataError(f"{path}: contains {other}, {ending}; {remedy_for(other)}")
        raise DataError(
            f"{path}: is not {compression}, {ending}; rename it to {Path(path).stem} if it is plain text, or copy it "
            "again"
        )


def remedy_for(content: Content) -> str:
    """Return what to do about a file with this content."""
    compression_suffixes = [suffix for suffix, compression in COMPRESSION_OF.items() if compression == content]
    if compression_suffixes:
        return f"decompress it, or give it as a file whose name ends with {compression_suffixes[0]}"
    return REMEDIES.get(content, CONVERT_REMEDY)


def _renaming(path: str, suffix: str, content: Content) -> str:
    """Return the remedy for a compressed file with a wrong name."""
    [right_suffix] = [suffix for suffix, compression in COMPRESSION_OF.items() if compression == content]
    name = Path(path).name
    if suffix:
        name = name[: -len(suffix)]
    return f"rename it to {name}{right_suffix}, or decompress it"


def _is_tar_inside(head: bytes) -> bool:
    """Return True if the start of a compressed file is that of a tar archive."""
    for decompressor in (zlib.decompressobj(wbits=31), bz2.BZ2Decompressor(), lzma.LZMADecompressor()):
        try:
            start = decompressor.decompress(head, TAR_BYTES)
        except (zlib.error, OSError, lzma.LZMAError):  # compressed in another way, or damaged
            continue
        return _binary(start) == Content.TAR
    return False


# ---- encodings ------------------------------------------------------------------------------------------------------


def _wide_encoding(head: bytes) -> Content | None:
    """Recognize UTF-16 and UTF-32 without a byte order mark, which contain NUL bytes."""
    if b"\0" not in head:
        return None
    if _is_text(head, 4, ("utf-32-le", "utf-32-be")):
        return Content.UTF_32
    if head.count(0) >= _min_nuls(head) and _is_text(head, 2, ("utf-16-le", "utf-16-be")):
        return Content.UTF_16
    return None


def _min_nuls(head: bytes) -> float:
    """Return the number of NUL bytes from which text is not UTF-8 with a few faulty characters."""
    if not _is_utf8(head):
        return 1
    # Bytes of UTF-16 may be valid UTF-8, but in most scripts, half of them are then control characters.
    without_nuls = head.replace(b"\0", b"").decode("utf-8", "ignore")
    has_control_characters = any(map(_is_no_text, without_nuls))
    return len(head) * (MIN_NUL_SHARE if has_control_characters else MIN_ASCII_NUL_SHARE)


def _is_text(head: bytes, width: int, encodings: Sequence[str]) -> bool:
    """Return True if the bytes are text with a letter, and a space or line end, in one of the encodings.

    Args:
        head: the first bytes of a file, which may end inside a character.
        width: number of bytes of a code unit.
        encodings: names of the encodings.
    """
    whole_units = head[: len(head) // width * width]
    for encoding in encodings:
        for end in (len(whole_units), len(whole_units) - width):  # the last unit may be half of a character
            try:
                text = whole_units[:end].decode(encoding)
            except UnicodeDecodeError:
                continue
            has_space = any(character in text for character in " \n\u3000")
            if has_space and any(map(str.isalnum, text)) and not any(map(_is_no_text, text)):
                return True
    return False


def _is_no_text(character: str) -> bool:
    return character not in "\t\n\r\f" and unicodedata.category(character) in NOT_TEXT


def _is_utf8(head: bytes) -> bool:
    """Return True if the bytes are UTF-8, apart from a character that is cut at their end."""
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data" and error.end == len(head)
    return True


def _other_encoding(head: bytes) -> Content | None:
    """Recognize text in which no line beyond ASCII is UTF-8; single broken lines are faults of these lines."""
    if head.isascii() or _is_utf8(head) or b"\0" in head:
        return None

    lines = head.split(b"\n")[:-1]
    num_invalid = 0
    for line in lines:
        if line.isascii():
            continue
        if _is_utf8(line + b"\n"):
            return None
        num_invalid += 1
    is_found = num_invalid >= max(MIN_INVALID_LINES, MIN_INVALID_SHARE * len(lines))
    return Content.OTHER_ENCODING if is_found else None


def _old_line_ends(head: bytes) -> Content | None:
    """Recognize text in which only carriage returns end lines, which would be read as a single line."""
    is_found = b"\n" not in head and head.count(b"\r") >= MIN_OLD_LINE_ENDS
    return Content.OLD_LINE_ENDS if is_found else None


# ---- formats of text ------------------------------------------------------------------------------------------------


def _markup(head: bytes) -> Content | None:
    start = head.removeprefix(BOM).lstrip()
    if HTML_START.match(_without_comments(start)):
        return Content.HTML
    if not XML_START.match(start):
        return None
    return Content.TMX if TMX_ELEMENT.search(start) else Content.XML


def _without_comments(start: bytes) -> bytes:
    """Return the start of a document without the XML declaration and the comments before its first element."""
    while start.startswith((b"<!--", b"<?xml")):
        end = b"-->" if start.startswith(b"<!--") else b"?>"
        _, _, rest = start.partition(end)
        start = rest.lstrip()
    return start


def _json(head: bytes) -> Content | None:
    start = head.removeprefix(BOM).lstrip()
    if ARRAY_START.match(start):
        return Content.JSON_ARRAY
    if DOCUMENT_START.match(start):
        return Content.JSON_DOCUMENT
    if not OBJECT_START.match(start):
        return None

    lines = _complete_lines(start)
    if not lines or all(map(_is_object, lines)):
        return Content.JSON_LINES
    return None


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def is_csv(head: bytes) -> bool:
    """Return True if all lines have the same number of cells, separated by commas or semicolons, and no tabs."""
    if b"\t" in head:
        return False
    lines = [line.decode("utf-8", "replace") for line in _complete_lines(head)]
    if len(lines) < MIN_LINES:
        return False
    for delimiter in ",;":
        try:
            widths = {len(cells) for cells in csv.reader(lines, delimiter=delimiter)}
        except csv.Error:  # a cell of more than 131,072 characters
            continue
        if len(widths) == 1 and max(widths) > 1:
            return True
    return False


def _complete_lines(head: bytes) -> list[bytes]:
    """Return the lines that are not blank, without the last one if it may be cut."""
    lines = head.split(b"\n")
    if len(head) >= HEAD_BYTES:
        lines.pop()
    return [line for line in lines if line.strip()]
