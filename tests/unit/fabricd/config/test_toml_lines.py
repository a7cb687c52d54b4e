"""The line of each key, against documents whose lines are known as they are written."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from telemetry.service.toml_lines import key_lines, line_of

BARE = st.text("abz09_-", min_size=1, max_size=4)
QUOTED = st.text("a.# \"'[]={}\\\u00e4", max_size=4)


class Document:
    """A TOML text under construction, with the line of each path."""

    def __init__(self, draw):
        self.draw = draw
        self.text = ""
        self.lines = {}

    @property
    def line(self):
        return self.text.count("\n") + 1

    def note(self, path):
        self.lines.setdefault(path, self.line)

    def put(self, text):
        self.text += text

    def key(self, used):
        """A key that is not used yet, and its text."""
        name = self.draw(st.one_of(BARE, QUOTED).filter(lambda k: k not in used))
        used.add(name)
        forms = [basic(name)]
        if name and set(name) <= set("abz09_-"):
            forms.append(name)
        if name and "'" not in name:
            forms.append(f"'{name}'")
        return name, self.draw(st.sampled_from(forms))

    def blank(self):
        """White space, comments and lines between the elements of an array."""
        self.put(
            self.draw(st.sampled_from(["", " ", "\n", "\n\n  ", " # ] [ \" ' {\n", "\t\n#\n"]))
        )

    def pair(self, table, used, depth):
        name, shown = self.key(used)
        path = (*table, name)
        if depth and self.draw(st.integers(0, 4)) == 0:  # dotted
            inner, inner_shown = self.key(set())
            shown = f"{shown} . {inner_shown}"
            self.note(path)
            path = (*path, inner)
        self.note(path)
        self.put(f"{shown} = ")
        self.value(path, depth)

    def value(self, path, depth, *, lines=True):
        kind = self.draw(st.integers(0, 7 if depth else 5))
        word = self.draw(QUOTED)
        if kind == 0:
            self.put(self.draw(st.sampled_from(["1", "true", "1.5e3", "-inf", "0x1F"])))
        elif kind == 1:
            self.put(self.draw(st.sampled_from(["2026-01-01 00:00:00", "10:00:00", "1979-05-27"])))
        elif kind == 2:
            self.put(basic(word))
        elif kind == 3:
            self.put("'" + word.replace("'", "") + "'")
        elif kind == 4:
            rest = word.replace("\\", "").replace('"', "")
            end = self.draw(st.sampled_from(["", '"', '""'])) if lines else ""
            self.put('"""' + rest + ('\nx = 1 # \\""\n' if lines else "") + end + '"""')
        elif kind == 5:
            rest = word.replace("'", "")
            self.put("'''" + rest + ("\n[y]\n" if lines else "") + "'''")
        elif kind == 6:
            self.put("[")
            for index in range(self.draw(st.integers(0, 3))):
                if lines:
                    self.blank()
                self.note((*path, index))
                self.value((*path, index), depth - 1, lines=lines)
                if lines:
                    self.blank()
                self.put(",")
            self.put("]")
        else:
            self.put("{")
            used = set()
            for index in range(self.draw(st.integers(0, 3))):
                self.put(", " if index else " ")
                self.pair(path, used, depth - 1)
            self.put(" }")


def basic(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@st.composite
def documents(draw):
    made = Document(draw)
    top = set()
    for _ in range(draw(st.integers(0, 3))):
        made.pair((), top, 2)
        made.put("\n")
    for _ in range(draw(st.integers(0, 4))):
        made.put(draw(st.sampled_from(["", "\n", "# [x]\n", "  "])))
        name, shown = made.key(top)
        for index in range(draw(st.integers(0, 3))):
            made.note((name,))
            made.note((name, index))
            made.put(f"[[ {shown} ]] # a\n")
            used = set()
            for _ in range(draw(st.integers(0, 2))):
                made.pair((name, index), used, 2)
                made.put("\n")
            inner, inner_shown = made.key(used)
            made.note((name, index, inner))
            made.put(f"[{shown}.{inner_shown}]\n")
            made.pair((name, index, inner), set(), 1)
            made.put("\n")
    return made.text, made.lines


@given(documents())
def test_each_key_has_the_line_on_which_it_was_written(document):
    text, lines = document
    tomllib.loads(text)
    assert key_lines(text) == lines


@given(documents(), st.integers(0, 3))
def test_a_text_that_moves_down_moves_all_its_lines(document, down):
    text, lines = document
    assert key_lines("#\n" * down + text) == {path: line + down for path, line in lines.items()}


def test_a_key_that_is_not_there_has_the_line_of_what_is_around_it():
    lines = key_lines("a = 1\n[t]\nx = [\n 1,\n {b = 2}]\n")
    assert line_of(lines, ("t", "x", 1, "c", "d")) == 5
    assert line_of(lines, ("t", "y")) == 2
    assert line_of(lines, ("z",)) == 1
