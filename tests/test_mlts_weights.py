"""Files of weights, and the packages that they come in: what is read, and that damaged and hostile ones are refused."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import io
import pickle
import random
import shutil
import struct
import subprocess
import sys
import tarfile
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest

from mlts.graph_def import constants
from mlts.packages import Package, cache_folder, digest_of, fetch
from mlts.weights import state_dict
from nnhal.errors import UsageError

# --- readers of weights -----------------------------------------------------------------------------------------------

TENSORS = {
    "a.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "b": np.array([-1.5, 2.25], np.float32),
    "count": np.array(7, np.int64),
    "half": np.array([[1, 2]], np.float16),
}
KINDS = {"float32": "FloatStorage", "int64": "LongStorage", "float16": "HalfStorage"}


class Saver(pickle.Pickler):
    """Writes state dicts as PyTorch does, with stand-ins for its classes."""

    def __init__(self, file, torch, utils, legacy):
        super().__init__(file, protocol=2)
        self.torch, self.utils, self.legacy = torch, utils, legacy

    def persistent_id(self, obj):
        if not isinstance(obj, tuple) or not obj or obj[0] != "storage of":
            return None
        _, name, value = obj
        pid = ("storage", getattr(self.torch, KINDS[value.dtype.name]), name, "cpu", value.size)
        return (*pid, None) if self.legacy else pid

    def reducer_override(self, obj):
        if not isinstance(obj, Stand):
            return NotImplemented
        strides = tuple(s // obj.value.itemsize for s in obj.value.strides)
        arguments = (("storage of", obj.key, obj.value), 0, obj.value.shape, strides, False, collections.OrderedDict())
        return self.utils._rebuild_tensor_v2, arguments


class Stand:
    """A tensor to be saved."""

    def __init__(self, key, value):
        self.key, self.value = key, value


@pytest.fixture
def save(monkeypatch):
    """A function of tensors that gives the bytes of a file, in the older or the zip format."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in KINDS.values():
        setattr(torch, name, type(name, (), {"__module__": "torch"}))

    def _rebuild_tensor_v2():
        pass

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    torch._utils = utils
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)

    def write(tensors, legacy):
        file = io.BytesIO()
        top = collections.OrderedDict((n, Stand(str(k), v)) for k, (n, v) in enumerate(tensors.items()))
        top._metadata = collections.OrderedDict(version=1)
        if not legacy:
            Saver(file, torch, utils, legacy).dump(top)
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as archive:
                archive.writestr("archive/data.pkl", file.getvalue())
                archive.writestr("archive/byteorder", b"little")
                for key, value in enumerate(tensors.values()):
                    archive.writestr(f"archive/data/{key}", value.tobytes())
            return packed.getvalue()
        pickle.dump(0x1950A86A20F9469CFC6C, file, 2)
        pickle.dump(1001, file, 2)
        pickle.dump({"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}, file, 2)
        Saver(file, torch, utils, legacy).dump(top)
        pickle.dump([str(k) for k in range(len(tensors))], file, 2)
        for value in tensors.values():
            file.write(struct.pack("<q", value.size) + value.tobytes())
        return file.getvalue()

    return write


@pytest.mark.parametrize("legacy", [True, False])
def test_state_dicts_are_read_in_both_formats(save, legacy):
    found = state_dict(save(TENSORS, legacy), "x.pth")
    assert list(found) == list(TENSORS)
    for name, value in TENSORS.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)


def test_a_pickle_that_calls_something_is_refused(tmp_path):
    mark = tmp_path / "called"

    class Evil:
        def __reduce__(self):
            return Path.touch, (mark,)

    head = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({"little_endian": True}, 2)
    with pytest.raises(UsageError, match=r"x\.pth is no file of PyTorch weights"):
        state_dict(head + pickle.dumps(Evil(), 2), "x.pth")
    assert not mark.exists()


@pytest.mark.parametrize("legacy", [True, False])
def test_damaged_state_dicts_give_a_usage_error(save, legacy):
    damaged(lambda data: state_dict(data, "x.pth"), save(TENSORS, legacy), 700)


def test_keys_nested_without_end_are_refused():
    deep = b"\x80\x02}" + b"K\x01" + b"\x85" * 300_000 + b"K\x01s."
    head = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({"little_endian": True}, 2)
    with pytest.raises(UsageError, match="tuples"):
        state_dict(head + deep, "x.pth")


def damaged(read, data, count):
    """Reads a file with bytes flipped, cut off or replaced by extreme ones; anything but a UsageError is a fault."""
    source = random.Random(5)
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(source.choice((1, 1, 2, 8))):
            place = source.randrange(len(changed))
            what = source.randrange(4)
            if what == 0:
                changed[place] ^= 1 << source.randrange(8)
            elif what == 1:
                changed[place : place + 4] = source.choice((b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"))
            elif what == 2:
                changed[place] = source.randrange(256)
            else:
                del changed[place:]
                changed += b"\0" * source.choice((0, 1))
            if not changed:
                break
        with contextlib.suppress(UsageError):
            read(bytes(changed))


def varint(number):
    text = b""
    while number > 0x7F:
        text += bytes([number & 0x7F | 0x80])
        number >>= 7
    return text + bytes([number])


def field(number, value):
    """A protobuf field: a number, or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def graph_def(tensors, extra=b""):
    """A GraphDef with a constant for each tensor."""
    nodes = b""
    for name, value in tensors.items():
        shape = b"".join(field(2, field(1, size)) for size in value.shape)
        tensor = field(1, 1) + field(2, shape) + field(4, value.tobytes())
        attribute = field(1, b"value") + field(2, field(8, tensor))
        kind = field(1, b"dtype") + field(2, field(6, 1))
        nodes += field(1, field(1, name.encode()) + field(2, b"Const") + field(5, kind) + field(5, attribute))
    return nodes + field(1, field(1, b"relu") + field(2, b"Relu") + field(3, b"a")) + extra


def test_constants_of_a_graph_are_read():
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    scalar = field(1, 1) + field(2, b"") + varint(5 << 3 | 5) + struct.pack("<f", 0.5)  # a number, not as content
    node = field(1, b"y") + field(2, b"Const") + field(5, field(1, b"value") + field(2, field(8, scalar)))
    found = constants(graph_def({"a": value}, field(1, node)), "x.pb")
    np.testing.assert_array_equal(found["a"], value)
    assert found["y"].shape == ()
    assert found["y"] == 0.5


def test_damaged_graphs_give_a_usage_error():
    damaged(lambda data: constants(data, "x.pb"), graph_def({"a": np.ones((2, 3), np.float32)}), 1500)
    with pytest.raises(UsageError, match="holds no float32 constant"):
        constants(b"", "x.pb")


# --- packages ---------------------------------------------------------------------------------------------------------


def archive(folder, name, members):
    """A wheel or source archive in the place where a person would put it."""
    folder.mkdir(parents=True, exist_ok=True)
    if name.endswith(".whl"):
        with zipfile.ZipFile(folder / name, "w") as made:
            for path, data in members.items():
                made.writestr(path, data)
    else:
        with tarfile.open(folder / name, "w:gz") as made:
            for path, data in members.items():
                member = tarfile.TarInfo(path)
                member.size = len(data)
                made.addfile(member, io.BytesIO(data))


def sha(data):
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("name", ["some_thing-1.0-py3-none-any.whl", "some-thing-1.0.tar.gz"])
def test_a_file_is_taken_out_of_a_package_and_kept(tmp_path, name):
    archive(tmp_path / "downloads", name, {"some_thing/a/w.bin": b"weights", "some_thing/w.py": b"code"})
    package = Package("pypi", "some-thing", "1.0", "a/w.bin", sha(b"weights"))
    kept = fetch(package, tmp_path)
    assert kept.read_bytes() == b"weights"
    (tmp_path / "downloads" / name).unlink()
    assert fetch(package, tmp_path) == kept
    assert [file.name for file in (tmp_path / "tmp").iterdir()] == []


def test_several_files_and_files_in_an_inner_archive(tmp_path):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as made:
        made.writestr("deep/m.tflite", b"model")
    members = {"p/data/x_1.jpg": b"1", "p/data/sub/y_2.jpg": b"2", "p/data/z.txt": b"3", "p/m.zip": inner.getvalue()}
    archive(tmp_path / "downloads", "p-1-py3-none-any.whl", members)
    lines = f"{sha(b'2')}  sub/y_2.jpg\n{sha(b'1')}  x_1.jpg\n"
    folder = fetch(Package("pypi", "p", "1", "p/data/*.jpg", sha(lines.encode())), tmp_path)
    assert sorted(file.name for file in folder.rglob("*.*")) == ["x_1.jpg", "y_2.jpg"]
    assert digest_of(folder) == sha(lines.encode())
    assert fetch(Package("pypi", "p", "1", "p/m.zip//m.tflite", sha(b"model")), tmp_path).read_bytes() == b"model"


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_files_are_taken_out_of_a_debian_package(tmp_path):
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text("Package: p\nVersion: 1-2\nArchitecture: all\nMaintainer: n\nDescription: d\n")
    (tree / "usr/share/p/sub").mkdir(parents=True)
    (tree / "usr/share/p/sub/a.png").write_bytes(b"a")
    (tree / "usr/share/p/link.png").symlink_to("/etc/passwd")
    (tmp_path / "downloads").mkdir()
    made = tmp_path / "downloads/p_1-2_all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, made], check=True, capture_output=True)
    package = Package("debian", "p", "1-2", "usr/share/p/*.png", sha(f"{sha(b'a')}  sub/a.png\n".encode()))
    folder = fetch(package, tmp_path)
    assert [file.relative_to(folder).as_posix() for file in folder.rglob("*.png")] == ["sub/a.png"]


def test_another_digest_is_refused(tmp_path):
    archive(tmp_path / "downloads", "p-1-py3-none-any.whl", {"p/w": b"other"})
    with pytest.raises(UsageError, match=rf"p/w of package p==1 has SHA-256 {sha(b'other')}, {sha(b'w')} is due"):
        fetch(Package("pypi", "p", "1", "p/w", sha(b"w")), tmp_path)
    assert not (tmp_path / "packages").exists()


def test_a_file_that_changed_in_the_cache_is_noticed(tmp_path):
    archive(tmp_path / "downloads", "p-1-py3-none-any.whl", {"p/w": b"w"})
    package = Package("pypi", "p", "1", "p/w", sha(b"w"))
    fetch(package, tmp_path).write_bytes(b"x")
    with pytest.raises(UsageError, match="remove it, and it is fetched again"):
        fetch(package, tmp_path)


def test_members_outside_damage_and_absence_are_refused(tmp_path):
    archive(tmp_path / "downloads", "p-1.tar.gz", {"p/data/../../../w.jpg": b"w", "q": b""})
    with pytest.raises(UsageError, match="lies outside"):
        fetch(Package("pypi", "p", "1", "p/data/*.jpg", sha(b"w")), tmp_path)
    with pytest.raises(UsageError, match=r"has no p/none\.bin in it"):
        fetch(Package("pypi", "p", "1", "p/none.bin", sha(b"w")), tmp_path)
    (tmp_path / "downloads" / "r-1.tar.gz").write_bytes(b"\x1f\x8b nothing of the kind")
    with pytest.raises(UsageError, match="is damaged"):
        fetch(Package("pypi", "r", "1", "w", sha(b"w")), tmp_path)
    assert not list(tmp_path.glob("**/w.jpg"))


def test_without_a_network_the_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UsageError, match=r"run `pip download --no-deps no-such-thing==9` and put the file into"):
        fetch(Package("pypi", "no-such-thing", "9", "w", sha(b"")), tmp_path)


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("NNCTS_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("NNCTS_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache/nncts"
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"the cache cannot be written .* name another folder in \$NNCTS_CACHE"):
        fetch(Package("pypi", "p", "1", "w", sha(b"")), tmp_path / "file")
