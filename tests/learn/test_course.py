"""The course: solutions pass, stubs and typical mistakes fail, the texts show what their code gives."""

import ast
import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import short_set
from processes import python

from minigrad.learn import course, judge


def cases(chapter: course.Chapter) -> Iterator[tuple[str, Callable[[], str], str, str]]:
    """For each exercise: a name, the file, the number, and the words of the answer, none if it is to pass."""
    stubs = functools.cache(chapter.stubs)
    for item in chapter.exercises:
        yield item.number, lambda: chapter.solution, item.number, ""
        yield f"{item.number}-stub", stubs, item.number, "missing: "
        for k, (old, new, words) in enumerate(item.wrong):
            yield f"{item.number}-wrong-{k}", functools.partial(chapter.mistaken, item, old, new), item.number, words


def is_long(name: str) -> bool:
    """Whether the short set leaves a case out: it has the first mistake of each exercise."""
    return "-wrong-" in name and not name.endswith("-wrong-0")


@functools.cache
def answers(number: int, short: bool) -> dict[str, judge.Answer]:
    """By the names of the cases."""
    chapter = course.chapters()[number]
    chosen = [case for case in cases(chapter) if not (short and is_long(case[0]))]
    found = judge.judge(chapter, [(source(), [item]) for _, source, item, _ in chosen], {})
    return {case[0]: answer for case, answer in zip(chosen, found, strict=True)}


CASES = [
    pytest.param(n, name, words, id=name, marks=[pytest.mark.long] if is_long(name) else [])
    for n, chapter in course.chapters().items()
    for name, _, _, words in cases(chapter)
]


@pytest.mark.parametrize(("chapter", "name", "words"), CASES)
def test_an_exercise_is_solved_by_its_solution_only(chapter, name, words, pytestconfig):
    answer = answers(chapter, short_set.is_short(pytestconfig))[name]
    assert (answer.state == "passed") == (not words) and words in f"{answer.state}: {answer.message}", answer


@pytest.mark.long
@pytest.mark.parametrize("number", course.chapters())
def test_the_words_of_a_mistake_are_in_no_answer_to_another_one(number):
    found = answers(number, False)
    answered = [(case[2:], found[case[0]].message) for case in cases(course.chapters()[number])]
    for (exercise, words), _ in answered:
        others = [said for (where, name), said in answered if where == exercise and name not in ("", words)]
        assert not words or (words != "expected" and not any(words in said for said in others)), (exercise, words)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("number", course.chapters())
def test_a_text_and_its_notebook_show_what_their_code_gives(number, tmp_path):
    variables = judge.environment(course.chapters()[number])
    done = python(Path(__file__).with_name("pages.py"), number, "--check", cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


@pytest.mark.long(but=1)
@pytest.mark.parametrize("number", course.chapters())
def test_a_solved_notebook_passes_its_checks_in_jupyter(number, tmp_path):
    client, formats = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    book = formats.reads(json.dumps(course.chapters()[number].notebook(course.chapters()[number].solution)), 4)
    client.execute(book, cwd=tmp_path)
    said = [cell.outputs[0].text.split() for cell in book.cells if cell.source.startswith("check(")]
    assert said == [[item.number, "passed"] for item in course.chapters()[number].exercises]


@pytest.mark.parametrize("number", course.chapters())
def test_a_chapter_is_whole(number):
    """Every exercise has a heading, hints, mistakes; code prints drawings; 30 to 90 minutes; a notebook is the file."""
    chapter = course.chapters()[number]
    assert re.findall(course.MARK, chapter.text) == [item.number for item in chapter.exercises]
    assert all(len(item.hints) >= 2 and len(item.wrong) >= 3 for item in chapter.exercises)
    assert 4 <= len(chapter.exercises) <= 8 and len(chapter.text.split()) <= 2500
    solved, given = ({line.strip() for line in text.splitlines()} for text in (chapter.solution, chapter.stubs()))
    minutes = len(prose_of([chapter.text]).split()) / 200 + 2 * len(solved - given) + len(chapter.exercises)
    assert 30 <= minutes <= 90 and abs(int(re.findall(r"(\d+) minutes", chapter.text)[0]) - minutes) <= 5, minutes
    assert not re.search(r"(?<!^```\n\n)^```text", chapter.text, re.MULTILINE)
    assert all(course.library_lines(item.library) for item in chapter.exercises)
    file = course.file_of_notebook(json.dumps(chapter.notebook(chapter.solution)))
    assert ast.unparse(ast.parse(file)) == ast.unparse(ast.parse(chapter.solution))


# The words ------------------------------------------------------------------------------------------------------------


def prose_of(texts: list[str]) -> str:
    """The texts without code, headings and targets of links."""
    code = r"^```.*?^```|^#.*?$|`[^`\n]*`|(?<=\])\([^)]*\)"
    return re.sub(code, "", "\n".join(texts), flags=re.MULTILINE | re.DOTALL)


def unexplained(texts: list[str], glossary: str) -> list[str]:
    """Words of the glossary that a text uses before one explains them: in bold, or with a link to the glossary."""
    prose = prose_of(texts)
    use = r"(?P<explained>\*\*|\[)?(?<![\w`])%s(?:s|es)?\b"
    words = re.findall(r"^- \*\*(.+?)\*\*:", glossary, re.MULTILINE)
    first = {word: re.search(use % re.escape(word), prose, re.IGNORECASE) for word in words}
    return [word for word in words if not (first[word] and first[word]["explained"])]


def test_every_word_of_the_glossary_is_explained_where_it_is_used_first():
    glossary = (course.FOLDER / "glossary.md").read_text(encoding="utf-8")
    texts = [chapter.text for chapter in course.chapters().values()]
    bold, entries = (set(re.findall(r"\*\*([^*]+?)s?\*\*", text.lower())) for text in (prose_of(texts), glossary))
    field = Path(__file__).with_name("field_words.txt").read_text(encoding="utf-8").splitlines()
    used = (word for word in field if re.search(rf"(?<![\w-]){word}(s|es)?\b", prose_of(texts), re.IGNORECASE))
    assert (bold | {word.lower().removesuffix("s") for word in used}) - entries == set()
    assert unexplained(texts, glossary) == []
    assert unexplained(["Loss.", "A **loss** is x. Any loss"], "- **loss**: x.") == ["loss"]
    assert unexplained(["A **loss** is x. `loss`", "losses"], "- **loss**: x.") == []
