"""The generated table and page say what the definitions say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nnhal.operations import from_json
from nnhal.operations import operations as table
from opset import OPSET, export


def test_the_generated_files_are_up_to_date() -> None:
    assert export.stale() == [], "run `python -m opset.export`"


def test_the_table_gives_back_what_the_definitions_say() -> None:
    read = {int(o.code): o for o in from_json(json.loads(export.table_text()))}
    assert read.keys() == OPSET.keys()
    for code, definition in OPSET.items():
        assert read[code] == definition.info, definition.name
        assert [s.id for s in read[code].signatures] == [s.id for s in definition.signatures]
        assert [s.since for s in read[code].signatures] == [s.since for s in definition.signatures]
    assert set(table()) == set(read)


def test_the_page_names_every_operation_operand_and_rule() -> None:
    page = export.page_text()
    sections = {text.split("\n")[0]: text for text in page.split("\n## ")[1:]}
    assert set(sections) == {definition.name for definition in OPSET.values()}
    for definition in OPSET.values():
        section = sections[definition.name]
        assert definition.doc in section
        for operand in (*(o for form in definition.forms for o in form.operands), *definition.results):
            assert f"| `{operand.name}" in section
        for rule in definition.rules:
            assert f"| {rule.label} | " in section
        judging = definition.judging
        assert f"Bound: {judging.words}." in section
        assert judging.left_open is None or f"Left open: {judging.left_open.words}." in section
        for row in definition.rows:
            assert f"| {row.id} | {row.since.version} |" in section
        assert section.count("Example (") == len(definition.examples)


def test_the_page_says_how_many_steps_are_allowed() -> None:
    sections = {text.split("\n")[0]: text for text in export.page_text().split("\n## ")[1:]}
    assert "Quantised results: 1 step.\n" in sections["ADD"]
    assert "Quantised results: 1 step, moved in `output`, 0 steps in `hits`.\n" in sections["HASHTABLE_LOOKUP"]
    assert "Quantised results: 1 step, moved in `scores_out`, 1 step in `rois`.\n" in sections["GENERATE_PROPOSALS"]
    assert "Quantised results: 1 step, moved.\n" in sections["MAX_POOL_2D"]
    assert "Quantised results: 1 step.\n" in sections["QUANTIZE"]
    assert "Quantised results: 10 steps in `cell_state_out`, 1 step in `output`.\n" in sections["QUANTIZED_16BIT_LSTM"]
    assert "Quantised results" not in sections["EXP"]
    assert "Rows of equal `batches` may come in any order" in sections["GENERATE_PROPOSALS"]


def test_stale_files_are_noticed_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "ROOT", tmp_path)
    monkeypatch.setattr(export, "TABLE", tmp_path / "operations.json")
    monkeypatch.setattr(export, "PAGE", tmp_path / "docs" / "operations.md")
    assert export.main(["--check"]) == 1
    assert "operations.json and docs/operations.md do not match the definitions" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert export.main([]) == 0
    assert export.main(["--check"]) == 0
    (tmp_path / "operations.json").write_text("{}")
    assert export.main(["--check"]) == 1
    assert capsys.readouterr().err == ("operations.json does not match the definitions; run `python -m opset.export`\n")
