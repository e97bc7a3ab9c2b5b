"""``minigrad watch``: what is read of a run, what is served to whom, and what a real browser then shows."""

import contextlib
import http.client
import itertools
import json
import math
import re
import shutil
import threading

import numpy as np
import pytest
from example_scripts import assert_refused
from processes import python

from minigrad.distributed import EventKind, Timeline
from minigrad.metrics_log import JsonLinesLog, about_run
from minigrad.tools.watch import command, series, server
from minigrad.tools.watch.runs import open_runs


def line(step, **more):
    """What a run writes after a step: ten of them take a second."""
    return {"step": step, "loss": 3 - step / 1000, "time": 1000 + step / 10, **more}


def write(folder, records, **about):
    """A run's folder, in which a process of 1,000 steps begins; ``about`` says what differs in that line."""
    with JsonLinesLog(folder / "metrics.jsonl") as log:
        for record in ({"run": {**about_run(1000, 64)["run"], **about}, "time": 1000}, *records):
            log.write(record)
    return folder


def opened(folder):
    return open_runs([str(folder)]).by_name[str(folder)]


def losses(run):
    run.refresh()
    return run.detail()["series"]["loss"]["step"]


# ---------------------------------------------------------------------- what is read


def test_a_log_is_read_as_it_grows_and_a_damaged_last_line_only_when_it_is_whole(tmp_path):
    run = opened(write(tmp_path, [line(1), line(2)]))
    with open(tmp_path / "metrics.jsonl", "ab", 0) as file:
        file.write(b'{"step": 3, "lo')
        assert losses(run) == [1, 2] and "the last line is not whole" in run.summary(0)["notes"][0]
        file.write(b'ss": 1.5}\n\0\0\0\n{"step": 4, "loss": "NaN"}\nno JSON\n{"step": 5, "loss": 1}\n')
    assert losses(run) == [1, 2, 3, 5]
    assert run.summary(0)["notes"] == ["damaged lines, which are left out: 2", "loss of step 4 is NaN"]


@pytest.mark.parametrize("cut", [True, False])
def test_a_restarted_run_goes_on_where_its_checkpoint_was(cut, tmp_path):
    run = opened(write(tmp_path, map(line, range(1, 9))))
    assert losses(run) == [*range(1, 9)] and run.seconds == pytest.approx(0.8)
    with JsonLinesLog(tmp_path / "metrics.jsonl") as log:
        log.truncate_after(4 if cut else 8)
    write(tmp_path, (line(step, val_loss=2.0) for step in range(5, 30)))  # longer than it was, before it is read again
    assert losses(run) == [*range(1, 30)] and run.detail()["restarts"] == [4 if cut else 5]


def test_a_curve_of_100_000_steps_is_short_and_loses_no_peak():
    curve, values = series.Series(), np.random.default_rng(0).normal(size=100_000)
    values[54_321], values[7] = 99.0, math.nan
    for step, value in enumerate(values, 1):
        curve.add(step, step / 10, value)
    shown = curve.shown()
    assert len(shown["value"]) == series.POINTS and max(shown["high"]) == 99 and shown["step"][-1] == 100_000
    assert np.mean(shown["value"]) == pytest.approx(np.nanmean(values), abs=1e-3)
    closer = curve.shown(series.SECONDS, 5432.0, 5433.0)  # as they are, and a point more on each side
    assert closer["step"] == [*range(54_319, 54_332)] and 99 in closer["value"] and "high" not in closer


def test_what_ranks_did_is_read_from_a_timeline_and_from_the_log(tmp_path):
    timeline = Timeline(clock=map(float, itertools.count()).__next__)
    for rank, kind in ((0, EventKind.BATCH), (0, EventKind.IDLE), (1, EventKind.BATCH)):  # each takes a second
        timeline.span(kind, rank, timeline.now_ms())
    timeline.event(EventKind.AVERAGE_END)
    timeline.save_json(tmp_path / "timeline.json")
    (tmp_path / "timeline-2.json").write_text("[1]")
    run = opened(write(tmp_path, [line(step, waited_by_rank=[0.5, 0]) for step in (10, 20)]))
    lanes = run.detail()["lanes"]
    assert [lane["waits"] for lane in lanes["log"]["ranks"]] == [[50, 50], [0, 0]]
    found = [np.mean(lane[key]) for lane in lanes["timeline.json"]["ranks"] for key in ("computes", "waits")]
    assert found == pytest.approx([100 / 6, 100 / 6, 100 / 6, 0], abs=1)  # of six seconds
    assert len(lanes["timeline.json"]["averages"]) == 1 and "2.json is no timeline" in run.summary(0)["notes"][0]


def test_the_state_of_a_run_and_the_time_that_is_left(tmp_path):
    gone = {"pid": int(python("-c", "import os; print(os.getpid())").stdout)}
    cases = ({}, 500, "running", 50.0), (gone, 500, "stopped", None), ({"host": "x"}, 500, "running", 50.0)
    for i, (about, steps, state, left) in enumerate((*cases, ({}, 1000, "finished", None))):
        summary = opened(write(tmp_path / str(i), map(line, range(1, steps + 1)), **about)).summary(1000 + steps / 10)
        assert (summary["state"], summary["left"]) == (state, left and pytest.approx(left)), about


# ---------------------------------------------------------------------- what is served


@contextlib.contextmanager
def served(folder):
    with server.open_server(open_runs([str(folder)]), "127.0.0.1", 0, 0) as serving:
        threading.Thread(target=serving.serve_forever, args=(0.05,), daemon=True).start()
        yield serving.server_address[1]
        serving.shutdown()


def get(port, path, **headers):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Security-Policy"], answer.read()


def test_requests_are_answered_or_refused_and_only_under_a_name_of_this_machine(tmp_path):
    write(tmp_path, [line(1, sample="</script><script>alert(1)</script>")])
    with served(tmp_path) as port:
        for path, host, code, part in (
            ("/", "127.0.0.1", 200, b"<!DOCTYPE html>"), ("/runs", "localhost:1", 200, b'"loss": 2.999'),
            (f"/run?name={tmp_path}&start=0&end=2", "[::1]", 200, b'"samples"'),
            ("/saved", "127.0.0.1", 200, b"\\u003c/script>\\u003cscript>alert"),
            ("/runs", "evil.example", 403, b"under the name"), ("/run?name=/etc", "localhost", 400, b"be followed"),
            (f"/run?name={tmp_path}&start=x", "[::1]", 400, b"be followed"), ("/../x", "[::1]", 404, b"no such"),
        ):  # fmt: skip
            status, policy, body = get(port, path, Host=host)
            assert (status, part in body) == (code, True) and "default-src 'none'" in policy, (path, body[:200])


def test_bad_input_is_one_line(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    run = str(write(tmp_path / "run", [line(1)]))
    for arguments, part in (
        ([f"{tmp_path}/none"], f"none does not exist; there are {run}"), ([f"{tmp_path}/empty"], "holds no run"),
        ([run, "--port", "99999"], "--port is 99999"), ([run, "--host", "203.0.113.1"], "cannot listen at 203.0.113.1"),
        ([run, "--export", f"{tmp_path}/no/folder.html"], "cannot write"), ([run, "--prot"], "unrecognized arguments"),
    ):  # fmt: skip
        assert command.main(arguments) == 2
        assert re.fullmatch(rf"error: .*{part}.*\n", capsys.readouterr().err), part
    assert_refused(python("-m", "minigrad", "watch", cwd=tmp_path / "empty"), 2, "runs does not exist; train one first")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_command_listens_on_loopback_unless_it_is_told(host, tmp_path, monkeypatch, capsys):
    bound = []
    monkeypatch.setattr(server.Server, "serve_forever", lambda self: bound.append(self.socket.getsockname()))
    flags = [] if host == "127.0.0.1" else ["--host", host]
    assert command.main([str(write(tmp_path, [line(1)])), "--port", "0", *flags]) == 0
    shown = capsys.readouterr()
    assert bound[0][0] == host and f"1 run at http://{host}:{bound[0][1]}/ (Ctrl-C ends it)\n" == shown.out
    assert ("can read these runs" in shown.err) == (host == "0.0.0.0")


# ---------------------------------------------------------------------- what the browser shows


@pytest.fixture(scope="module")
def browser():
    driver = pytest.importorskip("playwright.sync_api", reason="no browser is driven: playwright is not installed")
    if (program := shutil.which("chromium") or shutil.which("google-chrome")) is None:
        pytest.skip("no browser is installed: neither chromium nor google-chrome")
    with driver.sync_playwright() as started:
        yield started.chromium.launch(executable_path=program, args=["--no-sandbox"])  # which root must not have


@contextlib.contextmanager
def page_of(browser, url, width=1280, scheme="light"):
    """The page, whose scripts must raise nothing and break no rule of its own."""
    page, said = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme), []
    for event in ("pageerror", "console"):
        page.on(event, lambda what: said.append(str(what)))
    page.goto(url)
    yield page
    assert [text for text in said if "net::" not in text] == []
    page.close()


def labels(page, part="figure"):
    return " | ".join(picture.get_attribute("aria-label") for picture in page.query_selector_all(f"{part} svg[role]"))


def test_the_page_shows_a_run_while_it_trains(browser, tmp_path):
    more = {"lr": 1e-3, "grad_norm": 0.5, "tokens_per_second": 640, "memory_bytes": 2.5e9, "waited_by_rank": [0.3, 0]}
    last = line(190, val_loss=2.5, sample="The <i>first</i> sample")
    folder = write(tmp_path / "run <b>1", [*(line(step, **more) for step in range(10, 200, 10)), last], ranks=2)
    with served(folder) as port, page_of(browser, f"http://127.0.0.1:{port}/") as page:
        page.wait_for_selector("#status.live")
        for part in ("run <b>1", "running", "190 of 1,000", "2.81", "2.5", "640", "2.50 GB", "19 s"):
            assert part in page.inner_text("#runs")
        for part in ("Loss over step: ", "training: 2.81", "validation: 2.5", "Learning rate", "Gradient norm", "2.50"):
            assert part in labels(page)
        assert page.inner_text("#samples pre") == last["sample"] and "rank 0 waits 30 %" in labels(page, "#ranks")
        write(folder, [line(200, sample="The second sample"), line(210, new=1.0), line(220, new=2.0)])
        page.wait_for_selector("svg[aria-label^='new over step']")
        assert page.inner_text("#samples pre") == "The second sample" and "220 of 1,000" in page.inner_text("#runs")
        for axis in ("Tokens", "Time"):
            page.click(f"text={axis} >> nth=0")
            page.wait_for_selector(f"svg[aria-label^='Loss over {axis.lower()}']")
        page.context.set_offline(True)
        page.wait_for_selector("#status.lost")


def test_long_runs_are_short_curves_and_a_part_of_them_is_seen_in_full(browser, tmp_path):
    for name in "ab":
        write(tmp_path / name, [])
        with open(tmp_path / name / "metrics.jsonl", "a") as file:
            file.writelines(json.dumps(line(step, grad_norm=step % 7)) + "\n" for step in range(1, 100_001))
    with served(tmp_path) as port, page_of(browser, f"http://127.0.0.1:{port}/") as page:
        page.wait_for_selector("figure .curve >> nth=3")
        assert len(page.get_attribute("figure .curve", "d")) < 20_000
        box = page.query_selector("[data-chart=loss] svg").bounding_box()
        page.mouse.move(box["x"] + 600, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 605, box["y"] + 50)  # 400 steps
        assert re.search(r"a, training\s+-4\d\.\d+ \(-4", page.inner_text("#tip"))
        page.mouse.up()
        page.wait_for_selector("figure .band", state="detached")  # each step is seen
        page.uncheck("#runs input >> nth=0")
        page.wait_for_selector("figure .curve >> nth=2", state="detached")


@pytest.mark.parametrize(("width", "scheme", "back"), [(1280, "light", 246), (400, "dark", 20)])
def test_a_saved_page_is_whole_and_asks_nobody(width, scheme, back, browser, tmp_path):
    for name, lr in (("a", 1e-3), ("b", 2e-3)):
        write(tmp_path / name, [line(step, val_loss=2.0) for step in range(1, 50)], settings={"lr": lr})
    assert command.main([str(tmp_path), "--export", f"{tmp_path}/runs.html"]) == 0
    with page_of(browser, (tmp_path / "runs.html").as_uri(), width, scheme) as page:
        assert len(page.query_selector_all("figure .curve")) == 4
        assert page.evaluate("performance.getEntriesByType('resource').length") == 0
        assert page.inner_text("#status").startswith("saved ") and "0.002" in page.inner_text("#settings")
        for part in ("document.documentElement", "document.getElementById('runs')"):
            assert page.evaluate(f"{part}.scrollWidth") <= width  # nothing sticks out, or hides beyond an edge
        assert f"rgb({back}," in page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert len(page.screenshot(full_page=True)) > 20_000
