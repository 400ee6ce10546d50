"""From a driver's name to a Device: every way to write it, and one sentence for every way to get it wrong."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from nnhal import loading
from nnhal.device import Adapter, Device
from nnhal.errors import UsageError
from nnhal.loading import DriverSpec
from tests.add_model import add_model

MINIMAL = Path(__file__).with_name("minimal_driver.py")


@pytest.fixture
def driver_file(tmp_path):
    def write(text: str, name: str = "vendor_driver") -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write


def sentence(spec: str) -> str:
    with pytest.raises(UsageError) as caught:
        loading.load(DriverSpec.parse(spec))
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_spec_is_a_name_options_and_a_python() -> None:
    spec = DriverSpec.parse("litert,resolver=builtin,python=/x/bin/python,inner.a=b=c")
    assert spec.name == "litert"
    assert spec.options == {"resolver": "builtin", "inner.a": "b=c"}
    assert spec.python == "/x/bin/python"
    assert spec.text.startswith("litert,")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no name"),
        (",a=b", "has no name"),
        ("x,a", "'a' of 'x,a' is not key=value"),
        ("x,=a", "is not key=value"),
        ("x,a=1,a=2", "'a' stands twice"),
        ("x,python=", "write python=PATH"),
        ("x,preload=", "write preload=PATH"),
    ],
)
def test_a_malformed_spec_is_told_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DriverSpec.parse(text)


@pytest.mark.parametrize("name", [f"{MINIMAL}:DRIVER", f"{MINIMAL}:MinimalDriver", str(MINIMAL)])
def test_a_file_is_a_driver(name: str) -> None:
    device = loading.load(DriverSpec.parse(name))
    assert device.get_supported_operations(add_model()) == [True]


def test_a_module_is_a_driver() -> None:
    device = loading.load(DriverSpec.parse("tests.minimal_driver:DRIVER"))
    assert isinstance(device, Device)


def test_our_drivers_have_names_and_options() -> None:
    name = f"faulty,inner={MINIMAL}:DRIVER,fault=hang,operation=ADD"
    device = loading.load(DriverSpec.parse(name))
    assert device.get_version_string().endswith("with fault hang")
    assert DriverSpec.parse(name).is_ours
    assert not DriverSpec.parse(str(MINIMAL)).is_ours


def test_an_entry_point_is_a_driver(tmp_path, monkeypatch) -> None:
    info = tmp_path / "vendor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nncts.drivers]\nvendor = tests.minimal_driver:MinimalDriver\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert loading.installed()["vendor"] == "tests.minimal_driver:MinimalDriver"
    assert isinstance(loading.load(DriverSpec.parse("vendor")), Device)


def test_the_list_of_drivers_imports_nothing() -> None:
    found = loading.installed()
    assert found["faulty"] == "drivers/faulty.py"
    assert list(found) == sorted(found)


def test_an_unknown_name_is_told_with_what_there_is() -> None:
    text = sentence("mydrivr")
    assert text.startswith("driver 'mydrivr' not found; installed: ")
    assert "faulty" in text
    assert text.endswith("also accepted: module:attribute, path/to/file.py:attribute or path/to/library.so")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no.such.module:DRIVER", "there is no module 'no.such.module'"),
        ("does/not/exist.py:DRIVER", "driver file 'does/not/exist.py' does not exist"),
        ("tests.minimal_driver:OTHER", "has no attribute 'OTHER'"),
        ("tests.minimal_driver:DRIVER,speed=3", "does not take these options (given: speed)"),
        ("lib/libvendor.so", "driver library lib/libvendor.so does not exist; give the path of a shared library"),
        ("math:pi", "is float; a Device is needed"),
        ("builtins:dict", "gives dict, which is no nnhal.device.Device"),
        ("nnhal.device:Device", "is not complete"),
        (f"faulty,inner={MINIMAL},fault=bad", "fault='bad' is unknown; such as abort, "),
        (f"faulty,inner={MINIMAL},fault=hang,x=1", "option 'x' is unknown"),
    ],
)
def test_what_cannot_be_loaded_is_told_in_one_sentence(spec: str, message: str) -> None:
    assert message in sentence(spec)


def test_a_file_that_fails_to_import_names_the_error(driver_file) -> None:
    path = driver_file("import a_runtime_that_is_not_there\n")
    text = sentence(f"{path}:DRIVER")
    assert "fails to import: ModuleNotFoundError: No module named 'a_runtime_that_is_not_there'" in text
    path = driver_file("def f(:\n", "broken_syntax")
    assert "fails to import: SyntaxError" in sentence(f"{path}:DRIVER")
    path = driver_file("raise SystemExit(3)\n", "leaves")
    assert "fails to import: SystemExit: 3" in sentence(f"{path}:DRIVER")


def test_a_constructor_that_fails_names_the_error(driver_file) -> None:
    path = driver_file("def DRIVER():\n    raise OSError('no device')\n")
    assert "fails to start: OSError: no device" in sentence(f"{path}:DRIVER")


def test_a_drivers_own_usage_error_is_passed_on(driver_file) -> None:
    path = driver_file(
        """
        from nnhal.errors import UsageError

        def DRIVER():
            raise UsageError("pip install vendor-runtime")
        """
    )
    assert sentence(f"{path}:DRIVER") == "pip install vendor-runtime"


def test_a_file_may_use_its_neighbours_and_dataclasses(driver_file) -> None:
    driver_file("VALUE = 42\n", "neighbour_of_driver")
    path = driver_file(
        """
        from __future__ import annotations
        from dataclasses import dataclass
        import neighbour_of_driver
        from tests.minimal_driver import MinimalDriver

        @dataclass
        class Setting:
            value: int = neighbour_of_driver.VALUE

        class DRIVER(MinimalDriver):
            def get_version_string(self):
                return str(Setting().value)
        """
    )
    assert loading.load(DriverSpec.parse(f"{path}:DRIVER")).get_version_string() == "42"


def test_an_adapters_class_is_found_without_making_the_driver(driver_file) -> None:
    path = driver_file(
        """
        from nnhal.device import Adapter
        from nnhal.model import Translation

        class Runner(Adapter):
            def __init__(self): raise OSError("not here")
            @staticmethod
            def translate(model, options): return Translation(b"x", (None,))
            def get_supported_operations(self, model): return [True]
            def prepare_model(self, model, config=None): raise NotImplementedError

        def make(**options: str): return Runner()
        """
    )
    for name, cls in ((f"{path}:Runner", ""), (f"{path}:make", "Runner")):
        adapter = loading.adapter_of(DriverSpec.parse(name), cls)
        assert issubclass(adapter, Adapter)
        options: Mapping[str, str] = {}
        assert adapter.translate(add_model(), options).artifact == b"x"
    with pytest.raises(UsageError, match="has no Adapter class"):
        loading.adapter_of(DriverSpec.parse(str(MINIMAL)))
