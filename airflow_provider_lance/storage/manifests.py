"""The manifest of a table's version: its file name, and the exact time that it states."""

from __future__ import annotations

from airflow_provider_lance.storage.table import TableRef

MAGIC = b"LANC"  # the last four bytes of every manifest
MAX_VERSION = (1 << 64) - 1
_V2_DIGITS = 20


def manifest_name(version: int, scheme: str) -> str:
    """The file name of a version. V1 counts up; V2 counts down, so that the newest version is listed first."""
    return f"{version}.manifest" if scheme == "V1" else f"{MAX_VERSION - version:0{_V2_DIGITS}d}.manifest"


def naming_scheme(manifest_path: str) -> str:
    """The scheme an existing manifest's name follows."""
    return "V2" if len(_stem(manifest_path)) == _V2_DIGITS else "V1"


def named_version(manifest_path: str) -> int:
    """The version that a manifest's file name states, in either scheme."""
    number = int(_stem(manifest_path))
    return MAX_VERSION - number if naming_scheme(manifest_path) == "V2" else number


def _stem(manifest_path: str) -> str:
    return manifest_path.rpartition("/")[2].partition(".")[0]


def version_timestamp(table: TableRef, version: int) -> int:
    """When ``version`` was committed, in nanoseconds since 1970, exactly as its manifest says.

    pylance rounds to microseconds, and LanceDB continues a view only from the exact figure.
    """
    files = table.files()
    for scheme in ("V2", "V1"):
        content = files.read_bytes(f"_versions/{manifest_name(version, scheme)}")
        if content is not None:
            return _manifest_timestamp(content)
    raise FileNotFoundError(f"the manifest of version {version} of {table.base} is not there")


def _manifest_timestamp(data: bytes) -> int:
    """Field 7 of the manifest's protobuf, a google.protobuf.Timestamp. Layout: … | length | message | … | footer."""
    if not data.endswith(MAGIC):
        raise ValueError("not a Lance manifest")
    start = int.from_bytes(data[-16:-8], "little")
    length = int.from_bytes(data[start : start + 4], "little")
    stamp = _protobuf_field(data[start + 4 : start + 4 + length], 7)
    if not isinstance(stamp, bytes):
        raise ValueError("the manifest carries no timestamp")
    seconds, nanos = _protobuf_field(stamp, 1), _protobuf_field(stamp, 2)
    return int(seconds or 0) * 1_000_000_000 + int(nanos or 0)


def _protobuf_field(message: bytes, number: int) -> int | bytes | None:
    """The last value of a varint or length-delimited field in a protobuf message."""
    found: int | bytes | None = None
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        key = varint()
        kind = key & 7
        value: int | bytes
        if kind == 0:
            value = varint()
        elif kind == 2:
            size = varint()
            value = message[position : position + size]
            position += size
        else:
            size = {1: 8, 5: 4}[kind]
            value = message[position : position + size]
            position += size
        if key >> 3 == number:
            found = value
    return found
