"""``minigrad learn``: what it writes, what it keeps, and one clear line for whatever a learner's file does."""

import itertools
import json
import sys

import pytest

from minigrad.learn import command, course, judge, notebook


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    return (command.main(list(map(str, arguments))), *capsys.readouterr())


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "minigrad-course"


def test_a_learner_s_way(home, capfd, monkeypatch):
    assert "run    minigrad learn run 1" in run(capfd, "start", 1)[1]
    file = home / "chapter_01.py"
    assert file.read_text(encoding="utf-8") == course.chapters()[1].stubs()
    code, out, _ = run(capfd, "check", 1, "--hint")
    assert code == 1 and out.count("not written yet") == 7 and "hint" not in out
    assert [run(capfd, "check", "1.4", "--hint")[1].count("hint ") for _ in range(2)] == [1, 2]
    file.write_text("def f(:\n")  # said once, and no try of an exercise
    assert run(capfd, "check", 1)[1].splitlines()[1:] == ["  the file fails: line 1: invalid syntax: def f(:"]
    chapter = course.chapters()[1]
    old, new, words = chapter.exercises[1].wrong[3]
    file.write_text(chapter.mistaken(chapter.exercises[1], old, new), encoding="utf-8")
    for tries in (1, 2):
        code, out, _ = run(capfd, "check", 1, "--hint")
        assert code == 1 and words in out and out.count("hint ") == tries and out.count("passed") == 6
    assert "6 of 7" in run(capfd)[1]
    assert run(capfd, "check", "1.1")[0] == 0 and "hint" not in run(capfd, "check", "1.1", "--hint")[1]
    run(capfd, "start", 2)
    assert "chapter 1: ours" in run(capfd, "check", 2)[1]
    code, out, _ = run(capfd, "run", 1)
    assert code == 0 and "\n(12, 4, 1)\n" in out and "... at(matrix" in out and out.rstrip().endswith("*")
    assert run(capfd, "run", 2)[1].endswith("here it ends: needs exercise 2.1 first\n")
    file.write_text("raise KeyboardInterrupt")
    assert run(capfd, "run", 1)[:2] == (130, "here it ends: line 1: interrupted: raise KeyboardInterrupt\n")
    file.write_text(chapter.solution, encoding="utf-8")
    assert run(capfd, "check", 1)[0] == 0
    assert "chapter 1: yours" in run(capfd, "check", 2)[1]
    file.write_text(chapter.solution + "\n", encoding="utf-8")
    assert "changed since it passed" in run(capfd, "check", 2)[1]
    monkeypatch.setattr("sys.stdin.readline", lambda: "n\n")
    assert "def at" not in run(capfd, "solution", "1.2")[1]
    monkeypatch.setattr("sys.stdin.readline", lambda: "y\n")
    assert all(part in run(capfd, "solution", "1.2")[1] for part in ("class Index", "def at"))
    run(capfd, "start", 3, "--notebook")
    assert "exercise 3.1" in run(capfd, "check", 3)[1] + json.dumps((home / "chapter_03.ipynb").read_text())


def test_bad_input_is_one_line(home, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "greenlet", None)  # not installed
    run(capsys, "start", 1)
    kept = (home / "chapter_01.py").read_bytes()
    (home / "file").write_text("")
    for arguments, words in (
        (["start", 1], "there already"),
        (["start", 77], "no chapter 77"),
        (["check", 6], 'pip install "minigrad-cuda[learn]"'),
        (["check"], "a chapter is missing"),
        (["check", "1.9"], "1.1 to 1.7"),
        (["check", 2], "minigrad learn start 2"),
        (["solution", 1], "for example 1.1"),
        (["check", "²"], "there is no chapter ²"),
        (["start", 1, "--notebook"], "chapter_01.py is there already"),
        (["chekc"], "unknown command chekc"),
        (["--hnit"], "unrecognized arguments"),
        (["start", 2, "--folder", home / "file/x"], "cannot be written"),
        (["start", 2, "--folder", "/proc"], "cannot be written"),  # nobody may write there, not even root
    ):
        code, _, error = run(capsys, *arguments)
        assert code == 2 and error.startswith("error: ") and error.count("\n") == 1 and words in error, arguments
    assert (home / "chapter_01.py").read_bytes() == kept
    whole = '{"passed": [%s], "tries": {"2.1": %s}, "files": {}}'
    for damage in ("{", "[1]", '{"passed": 1}', whole % ('"1.1", 2', 1), whole % ("", '"x"')):
        (home / "minigrad-learn.json").write_text(damage)
        assert "is damaged" in run(capsys, "check", 1)[2]


def test_a_check_in_a_notebook_ends_and_gives_hints(home, capsys, monkeypatch):
    def row_major(shape):
        return any(n < 0 for n in itertools.count())

    monkeypatch.syspath_prepend(home)
    monkeypatch.setattr(notebook, "SECONDS", 0.2)
    check = notebook.begin(1, {"row_major": row_major})
    for hint, shown in (True, 1), (True, 2), (False, 0):
        check("1.1", hint)
        out = capsys.readouterr().out
        assert "it did not end within 0.2 s: an endless loop?: return any(n < 0 for n" in out
        assert sum(f"  {text}\n" in out for text in course.chapters()[1].exercises[0].hints) == shown


BROKEN = {
    "def f(:": "the file fails: line 1: invalid syntax",
    "while True: pass": "the file fails: line 1: it did not end within 1 s",
    "while True:\n  try:\n    while True: pass\n  except BaseException: pass": "did not end within 1 s",
    "while True: print('x' * 99)": "prints without end",
    "raise SystemExit": "it ends the program",
    "import os; os._exit(0)": "without an answer",
    "1 / 0": "line 1: ZeroDivisionError: division by zero: 1 / 0",
    "def f(): return f()\nf()": "line 1: RecursionError",
    "import chapter_99": "line 1: ModuleNotFoundError",
    "def row_mayor(shape): return shape": "the file has no `row_major`: was it renamed, or deleted?",
}


@pytest.mark.long
def test_a_broken_file_is_one_answer():
    for source, words in BROKEN.items():
        (answer,) = judge.judge(course.chapters()[1], [(source, ["1.1"])], {}, seconds=1.0)
        state = "broken" if answer.message.startswith("the file fails: ") else "wrong"
        assert answer.state == state and words in answer.message and "\n" not in answer.message, (source, answer)


def test_a_kernel_may_import_numba_s_words():
    chapter, ours = course.chapters()[6], "from minigrad.cuda_kernels.simulator import cuda"
    source = chapter.solution.replace(ours, "from numba.cuda import grid as place").replace("cuda.grid(", "place(")
    assert judge.judge(chapter, [(source, ["6.1"])], {}) == [judge.Answer("6.1", "passed")]


def test_an_answer_names_the_exercise_on_which_it_rests():
    chapter = course.chapters()[7]
    source = chapter.mistaken(chapter.exercises[0], "largest = LOWEST", "largest = np.float32(0)")
    (answer,) = judge.judge(chapter, [(source, ["7.4"])], {})
    assert answer.message.startswith("exercise 7.1, on which this one may rest, is not right yet: begin there\nx = ")


@pytest.mark.long
def test_what_hangs_in_a_check_is_one_line_with_its_place():
    """In the check's own thread, in those of ranks, in a kernel."""
    for number, line in ("2.3", "found[end] = 1.0"), ("9.1", "distance = 1"), ("6.1", "i = cuda.grid(1)"):
        chapter, hang = course.chapters()[int(number[0])], "while True: 1"
        source = chapter.solution.replace(line, hang, 1)
        (answer,) = judge.judge(chapter, [(source, [number])], {}, seconds=2.0)
        place = source.partition(hang)[0].count("\n") + 1
        assert answer.message == f"line {place}: it did not end within 2 s: an endless loop?: {hang}"
