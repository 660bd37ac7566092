"""Manifests: their names in both schemes, and the exact time that each of them states."""

from __future__ import annotations

import os
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from airflow_provider_lance.storage.manifests import manifest_name, named_version, naming_scheme, version_timestamp
from airflow_provider_lance.storage.table import TableRef

ROWS = pa.table({"id": [1, 2]})


def write(path: Path, *, v2: bool, versions: int = 3) -> TableRef:
    lance.write_dataset(ROWS, str(path), enable_v2_manifest_paths=v2)
    for _ in range(versions - 1):
        lance.write_dataset(ROWS, str(path), mode="append")
    return TableRef(str(path))


@pytest.mark.parametrize("scheme", ["V1", "V2"])
def test_a_name_says_its_version(tmp_path: Path, scheme: str) -> None:
    table = write(tmp_path / "t.lance", v2=scheme == "V2")
    names = sorted(path.name for path in (tmp_path / "t.lance" / "_versions").glob("*.manifest"))
    assert names == sorted(manifest_name(version, scheme) for version in (1, 2, 3))
    assert {naming_scheme(name) for name in names} == {scheme}
    assert sorted(map(named_version, names)) == [1, 2, 3]
    assert named_version(f"{table.location}/_versions/{manifest_name(2, scheme)}") == 2


def test_the_newest_of_the_v2_names_sorts_first() -> None:
    names = [manifest_name(version, "V2") for version in (1, 9, 10, 1 << 40)]
    assert names == sorted(names, reverse=True)
    assert {len(name) for name in names} == {len("18446744073709551615.manifest")}


@pytest.mark.parametrize("v2", [False, True])
def test_the_time_is_the_manifests_own_to_the_nanosecond(tmp_path: Path, v2: bool) -> None:
    table = write(tmp_path / "t.lance", v2=v2)
    found = [version_timestamp(table, version) for version in (1, 2, 3)]
    stated = [one["timestamp"] for one in table.open()._ds.versions()]  # before pylance makes a datetime of them
    assert found == stated
    assert any(time % 1000 for time in found), "pylance rounds these to microseconds"


def test_a_branch_has_times_of_its_own(tmp_path: Path) -> None:
    main = write(tmp_path / "t.lance", v2=True)
    main.open().create_branch("dev")
    branch = TableRef(main.location, "dev")
    for table in (branch, main):
        lance.write_dataset(ROWS, table.open(), mode="append")
    assert version_timestamp(branch, 4) < version_timestamp(main, 4)


def test_a_version_without_a_manifest_and_a_broken_one_are_told(tmp_path: Path) -> None:
    table = write(tmp_path / "t.lance", v2=True)
    with pytest.raises(FileNotFoundError, match=r"the manifest of version 9 of .*t\.lance is not there"):
        version_timestamp(table, 9)
    manifest = tmp_path / "t.lance" / "_versions" / manifest_name(2, "V2")
    os.truncate(manifest, manifest.stat().st_size - 1)
    with pytest.raises(ValueError, match="not a Lance manifest"):
        version_timestamp(table, 2)
