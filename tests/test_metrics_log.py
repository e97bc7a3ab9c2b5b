"""The metrics log: valid JSON always, whole lines only, and no line twice after a resume."""

import errno
import json
import math
import os
import sys

import numpy as np
import pytest
from processes import writing
from refusals import raises

from minigrad.metrics_log import JsonLinesLog, TensorBoardWriter, read_json_lines


def strict(path):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_records_are_visible_at_once_and_valid_json(tmp_path):
    path = tmp_path / "runs" / "log.jsonl"
    with JsonLinesLog(path) as log:
        log.write({"step": 1, "loss": 0.1, "nan": math.nan, "list": (np.float32(np.inf), -math.inf), "d": {"a": None}})
        assert len(strict(path)) == 1
        log.write({"step": np.int64(2), "loss": np.array(0.5), "text": "ünï\nx", "flag": np.True_})
        first, second = strict(path)
    assert first == {"step": 1, "loss": 0.1, "nan": "NaN", "list": ["Infinity", "-Infinity"], "d": {"a": None}}
    assert second == {"step": 2, "loss": 0.5, "text": "ünï\nx", "flag": True}
    assert read_json_lines(path) == [first, second]
    with JsonLinesLog(path) as log:
        raises(TypeError, "", lambda: log.write({"x": object()}))
        log.write({"step": 3})
        log.close()
    assert [record["step"] for record in read_json_lines(path)] == [1, 2, 3]


def test_a_file_cut_at_any_byte_is_continued(tmp_path):
    path = tmp_path / "log.jsonl"
    first, second = b'{"step": 1, "loss": 2.5}', b'{"step": 2, "note": "\xc3\xa4"}'
    whole = first + b"\n" + second + b"\n"
    ends = {1: len(first), 2: len(first) + 1 + len(second)}
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        with JsonLinesLog(path) as log:
            log.write({"step": 3})
        steps = [record["step"] for record in strict(path)]
        assert steps == [step for step, end in ends.items() if cut >= end] + [3]


def test_zeros_after_a_power_cut_are_dropped(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n' + b"\0" * 100)
    with JsonLinesLog(path) as log:
        log.write({"step": 2})
    assert strict(path) == [{"step": 1}, {"step": 2}]


def test_a_resumed_run_repeats_no_line(tmp_path):
    path = tmp_path / "log.jsonl"
    with JsonLinesLog(path) as log:
        log.write({"config": {"step": 99}})
        for step in range(1, 8):
            log.write({"step": step, "loss": 1.0 / step})
            if step % 2 == 0:
                log.write({"step": step, "val_loss": 1.0})
    before = strict(path)
    with JsonLinesLog(path) as log:
        log.truncate_after(4)
        kept = strict(path)
        assert [record.get("step") for record in kept] == [None, 1, 2, 2, 3, 4, 4]
        for record in before[len(kept) :]:
            log.write(record)
    assert strict(path) == before
    with JsonLinesLog(path) as log:
        log.truncate_after(100)
        assert strict(path) == before
        log.truncate_after(-1)
        assert len(strict(path)) == 1


def test_a_damaged_line_in_the_middle_costs_only_itself(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 1}\n\xff{"st\n[1]\n{"step": 3}\n')
    assert read_json_lines(path) == [{"step": 1}, {"step": 3}]
    with JsonLinesLog(path) as log:
        log.truncate_after(2)
    assert path.read_bytes() == b'{"step": 1}\n\xff{"st\n[1]\n'


def test_a_full_disk_names_the_file_and_leaves_whole_lines(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    write = os.write
    with JsonLinesLog(path) as log:
        log.write({"step": 1})
        with monkeypatch.context() as patch:
            calls = iter([True, False])

            def full(fd, data):
                if next(calls):
                    return write(fd, data[:5])
                raise OSError(errno.ENOSPC, "No space left on device")

            patch.setattr(os, "write", full)
            raises(OSError, r"No space left on device.*log\.jsonl", log.write, {"step": 2})
        assert strict(path) == [{"step": 1}]
        log.write({"step": 3})
    assert strict(path) == [{"step": 1}, {"step": 3}]


def test_a_file_that_another_process_writes_is_refused_and_that_process_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with writing(path) as pid:
        named = f"process {pid} " if sys.platform == "linux" else "another process"
        raises(BlockingIOError, rf"{named}[ -~]*is writing it: .*metrics\.jsonl", lambda: JsonLinesLog(path))
    with JsonLinesLog(path) as first, JsonLinesLog(path) as again:  # a notebook's cell that runs twice
        first.write({"step": 1})
        again.write({"step": 2})
    assert len(read_json_lines(path)) == 2


def test_a_callback_that_fails_is_a_warning(tmp_path):
    words = r"a callback of .*log.jsonl failed, and is called again: TypeError"
    with JsonLinesLog(tmp_path / "log.jsonl", [{}.__getitem__]) as log, pytest.warns(UserWarning, match=words):
        log.write({"step": 1})
    assert read_json_lines(tmp_path / "log.jsonl") == [{"step": 1}]


def test_callbacks_and_tensorboard_get_what_is_written(tmp_path):
    reader = pytest.importorskip("tensorboardX.proto.event_pb2", reason="tensorboardX is not installed")
    seen = []
    with JsonLinesLog(tmp_path / "log.jsonl", [seen.append, TensorBoardWriter(tmp_path)]) as log:
        log.write({"run": {"steps": 2}})
        log.write({"step": 1, "loss": np.float32(0.5), "bad": math.nan, "sample": "text", "time": 10.0, "list": [1]})
    assert seen == read_json_lines(tmp_path / "log.jsonl")
    content, events = next(tmp_path.glob("events.out.tfevents.*")).read_bytes(), []
    while content:  # of each event the length, four bytes more, the event, four bytes
        events.append(reader.Event.FromString(content[12 : (end := 12 + int.from_bytes(content[:8], "little"))]))
        content = content[end + 4 :]
    found = {value.tag: (event.step, value.simple_value) for event in events for value in event.summary.value}
    assert set(found) == {"loss", "bad", "sample/text_summary"} and found["loss"] == (1, 0.5)
