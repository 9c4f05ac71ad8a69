from collections import Counter

from tests.english import PHRASES, files, hits, known
from tests.paths import ROOT


def test_no_file_has_more_foreign_phrases_than_it_had():
    counts = known()
    new = []
    for path in files():
        file = path.relative_to(ROOT).as_posix()
        found = hits(path)
        for phrase, number in Counter(phrase for phrase, _ in found).items():
            if number > counts[file, phrase]:
                passages = [passage for name, passage in found if name == phrase]
                new.append(f"{file}: {phrase!r}; write {PHRASES[phrase][1]}: {passages}")
    assert not new, "\n".join(new)


def test_phrases_are_found_in_messages_docstrings_comments_and_pages(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        '"""Draw it, and ``draw`` in code."""\n'
        "FAULT = 'this value is no range at all'\n"
        "seconds = 1  # two seconds a step\n"
    )
    page = tmp_path / "page.md"
    page.write_text("# Page\n\nA column of\nscores.\n\n```\na column of scores\n```\n")
    assert [name for name, _ in hits(module)] == ["is no range", "picture, draw", "ranks a trial"]
    assert [name for name, _ in hits(page)] == ["column of the score"]
