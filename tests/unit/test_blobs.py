"""Large values by reference: what is kept is what is read, names cannot leave their directory, and nothing is ever half there."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conductor import codec
from conductor.blobs import FileBlobs, check_name, open_blobs
from conductor.errors import BadInput, BlobMissing, BlobRefused, BlobUnreachable, CorruptPayload, NoBlobStore, ValueTooLarge
from conductor.ids import new_run_id

RUN = "01900000-0000-7000-8000-0000000000ab"
NAME = f"shop/{RUN}/0r"
LARGE = {"text": "ä" * 40_000}


class Memory(dict[str, bytes]):
    """The least an object must do to be a blob store."""

    def put(self, name: str, data: bytes) -> None:
        self[name] = data

    def get(self, name: str) -> bytes:  # type: ignore[override]
        return self[name]

    def delete(self, name: str) -> None:
        self.pop(name, None)


@pytest.fixture
def no_blobs() -> Iterator[None]:
    kept = codec._blobs
    yield
    codec.use_blobs(kept)


@pytest.fixture
def files(tmp_path: Path) -> FileBlobs:
    return FileBlobs(f"file://{tmp_path}/blobs")


@pytest.fixture(params=["files", "object"])
def blobs(request: pytest.FixtureRequest, files: FileBlobs, no_blobs: None) -> Any:
    store = open_blobs(files.url if request.param == "files" else Memory())
    codec.use_blobs(store)
    return store


@pytest.mark.spec("RUN-10")
def test_a_large_value_goes_by_reference_and_comes_back(blobs: Any) -> None:
    payload = codec.encode(LARGE)
    kept = codec.offload(payload, NAME)
    assert kept.startswith(f"b1:{len(payload.encode())}:{NAME}.")
    assert len(kept) < 200
    assert codec.decode(kept) == LARGE
    assert codec.split_list(codec.offload(codec.encode([LARGE, 1]), NAME)) == [codec.encode(LARGE), "j1:1"]
    assert codec.decode(codec.join_list([kept, None, "j1:2"])) == [LARGE, None, 2]
    assert codec.offload(kept, NAME) == kept


@pytest.mark.spec("RUN-10")
def test_the_threshold_counts_bytes_and_small_values_stay_where_they_are(blobs: Any) -> None:
    fits = "j1:" + '"' + "a" * (codec.OFFLOAD_ABOVE - 5) + '"'
    assert codec.offload(fits, NAME) == fits
    assert codec.offload(fits + " ", NAME).startswith("b1:65537:")
    assert codec.offload('j1:"é"', NAME, threshold=7) == 'j1:"é"'
    assert codec.offload('j1:"é"', NAME, threshold=6).startswith("b1:7:")


@pytest.mark.spec("RUN-10")
def test_a_blob_can_be_found_from_its_payload_and_dies_with_its_run(blobs: Any) -> None:
    kept = codec.offload(codec.encode(LARGE), NAME)
    (name,) = codec.blob_names(kept)
    assert blobs.get(name) == codec.encode(LARGE).encode()
    blobs.delete(name)
    blobs.delete(name)
    with pytest.raises(BlobMissing, match=name):
        codec.decode(kept)
    assert codec.blob_names(codec.encode(LARGE)) == ()


@pytest.mark.spec("RUN-10")
def test_without_a_store_the_limit_stays_and_a_reference_says_what_to_set(no_blobs: None) -> None:
    codec.use_blobs(None)
    payload = codec.encode(LARGE)
    assert codec.offload(payload, NAME) == payload
    assert codec.size_limit() == codec.LIMIT
    with pytest.raises(ValueTooLarge, match=r"has 1048578 bytes, the limit is 1048576"):
        codec.encode("a" * codec.LIMIT, limit=codec.size_limit())
    with pytest.raises(NoBlobStore, match="set conductor_blobs"):
        codec.decode(f"b1:5:{NAME}.0011223344556677")


@pytest.mark.spec("RUN-10")
def test_with_a_store_a_value_may_be_larger_than_the_limit(blobs: Any) -> None:
    value = "a" * (2 * codec.LIMIT)
    assert codec.decode(codec.offload(codec.encode(value, limit=codec.size_limit()), NAME)) == value


@pytest.mark.spec("RUN-10")
def test_an_attempt_that_lost_cannot_change_what_another_committed(blobs: Any) -> None:
    committed = codec.offload(codec.encode(LARGE), NAME)
    late = codec.offload(codec.encode(LARGE | {"late": True}), NAME)
    assert committed != late
    assert codec.decode(committed) == LARGE


@pytest.mark.spec("RUN-10")
def test_a_users_codec_is_applied_before_a_value_leaves(blobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Secret:
        def encode(self, text: str) -> str:
            return text[::-1]

        decode = encode

    monkeypatch.setattr(codec, "_codecs", {"x1": Secret()})
    monkeypatch.setattr(codec, "_writer", "x1")
    kept = codec.offload(codec.encode(LARGE), NAME)
    assert blobs.get(codec.blob_names(kept)[0]).startswith(b"x1:}")
    assert codec.decode(kept) == LARGE


def test_a_blob_that_is_not_what_was_written_is_never_read(no_blobs: None) -> None:
    store = Memory()
    codec.use_blobs(store)
    kept = codec.offload(codec.encode(LARGE), NAME)
    (name,) = codec.blob_names(kept)
    for wrong in (b"", store[name][:-1], store[name].replace(b"text", b"tent")):
        with pytest.raises(CorruptPayload, match=name):
            Memory.put(store, name, wrong)
            codec.decode(kept)


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize("payload", ["b1:", "b1:x", "b1:1:../../etc/passwd", "b1:1:a/b/c", f"b1:x:{NAME}", "b1:1:"])
def test_a_forged_reference_is_refused(payload: str, blobs: Any) -> None:
    with pytest.raises(CorruptPayload):
        codec.decode(payload)
    with pytest.raises(CorruptPayload):
        codec.blob_names(payload)


def test_a_store_that_fails_is_told_from_one_that_has_it_not(no_blobs: None) -> None:
    class Broken(Memory):
        def get(self, name: str) -> bytes:  # type: ignore[override]
            raise TimeoutError("no answer from https://key:hunter2@host")

        put = get  # type: ignore[assignment]

    codec.use_blobs(Broken())
    with pytest.raises(BlobUnreachable, match="Broken") as caught:
        codec.decode(f"b1:5:{NAME}.0011223344556677")
    assert caught.value.error_kind == "transient"
    assert "hunter2" not in str(caught.value)
    with pytest.raises(BlobUnreachable):
        codec.offload(codec.encode(LARGE), NAME)


@pytest.mark.spec("BAD-1")
@pytest.mark.parametrize(
    "name",
    [
        "", "shop", "../etc/passwd", f"shop/{RUN}", f"shop/{RUN}/", f"/shop/{RUN}/x", f"shop/../{RUN}/x", f"../{RUN}/x", f"shop/{RUN}/..", f"shop/{RUN}/.part-1",
        f"shop/{RUN}/a/b", f"shop/{RUN}/a\0", f"shop/{RUN}/a\n", "shop/not-a-run/x", f"shop/{RUN.upper()}/x", f"shop/{RUN}/{'a' * 201}", f"a b/{RUN}/x",
    ],
)  # fmt: skip
def test_a_name_cannot_leave_its_directory(name: str, files: FileBlobs) -> None:
    with pytest.raises(BadInput, match="blob refused"):
        check_name(name)
    for act in (lambda: files.put(name, b""), lambda: files.get(name), lambda: files.delete(name)):
        with pytest.raises(BadInput):
            act()


def test_only_the_owner_reads_files_whatever_the_umask(files: FileBlobs) -> None:
    before = os.umask(0)
    try:
        files.put(NAME, b"x")
        FileBlobs(f"{files.url}-2")
    finally:
        os.umask(before)
    path = files.directory / NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path.parent, path.parent.parent, Path(f"{files.directory}-2"))] == [0o700] * 3


def test_blobs_are_listed_by_prefix_and_by_age(files: FileBlobs) -> None:
    other = new_run_id(16)
    for name in (NAME, f"shop/{RUN}/1r", f"shop/{other}/0r", f"shop2/{RUN}/0r"):
        files.put(name, b"12")
    os.utime(files.directory / NAME, (1000, 1000))
    (files.directory / "shop" / RUN / ".part-dead").write_bytes(b"1")
    os.utime(files.directory / "shop" / RUN / ".part-dead", (1000, 1000))
    assert list(files.names(f"shop/{RUN}/")) == [NAME, f"shop/{RUN}/1r"]
    assert set(files.names("shop/")) == {NAME, f"shop/{RUN}/1r", f"shop/{other}/0r"}
    assert len(list(files.names())) == 4
    assert list(files.names("elsewhere/")) == []
    assert [(blob.name, blob.size, blob.written_at) for blob in files.listing("shop/", before=2000)] == [(NAME, 2, 1000.0)]
    assert (files.drop_unfinished(500), files.drop_unfinished(2000), files.drop_unfinished(2000)) == (0, 1, 0)


def test_the_directory_of_a_run_goes_with_its_last_blob(files: FileBlobs) -> None:
    files.put(NAME, b"1")
    files.put(f"shop/{RUN}/1r", b"1")
    files.delete(NAME)
    assert (files.directory / "shop" / RUN).exists()
    files.delete(f"shop/{RUN}/1r")
    assert not (files.directory / "shop" / RUN).exists()


def test_a_write_that_meets_the_deletion_of_its_directory_still_lands(files: FileBlobs) -> None:
    def fight(worker: int) -> None:
        for number in range(100):
            name = f"shop/{RUN}/{worker}.{number}"
            files.put(name, b"x" * 10)
            assert files.get(name) == b"x" * 10
            files.delete(name)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fight, range(4)))
    assert list(files.names()) == []


def test_a_killed_writer_leaves_whole_blobs_or_none(files: FileBlobs) -> None:
    code = (
        "import sys; from conductor.blobs import FileBlobs\n"
        "store = FileBlobs(sys.argv[1]); number = 0\n"
        f"while True: store.put('shop/{RUN}/b%d' % number, bytes([number % 256]) * 3_000_000); number += 1; print(number, flush=True)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, files.url], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    for _ in range(5):
        writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    found = list(files.names())
    assert len(found) >= 5
    for name in found:
        assert len(set(files.get(name))) == 1
        assert len(files.get(name)) == 3_000_000


@pytest.mark.spec("ERR-2")
@pytest.mark.parametrize("url", ["", "s3://bucket", "file://host/dir", "file:relative", "/plain/path", "file:///a?b=1", "file:///no/such/place"])
def test_a_wrong_place_is_refused_with_the_remedy(url: str) -> None:
    with pytest.raises(BlobRefused, match=r"give|make"):
        open_blobs(url)


def test_an_object_must_know_the_three_verbs() -> None:
    with pytest.raises(BlobRefused, match="no put and no get and no delete"):
        open_blobs(7)
    store = Memory()
    assert open_blobs(store) is store
