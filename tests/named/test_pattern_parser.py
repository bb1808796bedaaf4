"""Expressions: what can be read, what cannot, and where the caret of the error is."""

from re import escape

import pytest

import axonym as nym


x = nym.zeros({"a": 2, "b": 3, "c": 4})

NO_NAME = "has no meaning here; names have letters, digits and '_', and do not begin with a digit, or are in quotes"

UNREADABLE = [
    ("", 0, "there is no '->' before the result"),
    ("a b c - b", 6, f"'-' {NO_NAME}"),
    ("a 2 c -> a", 2, f"'2' {NO_NAME}"),
    ("a 'b c -> a", 2, "a quote is not closed"),
    ("a b c -> a '...'", 11, "a name in quotes is not empty, nor '...'"),
    ("a .. c -> a", 2, "write '...' for the other axes"),
    ("a b c -> a -> b", 11, "there is more than one '->'"),
    ("a b -> a, b", 8, "there is only one result; ',' separates operands"),
    ("(b c -> b c", 0, "a '(' is not closed"),
    ("{(m: b} -> b", 1, "a '(' is not closed"),
    ("a b) -> a b", 3, "this ')' closes nothing"),
    ("{a b -> a", 0, "a '{' is not closed"),
    ("a b} -> a", 3, "this '}' closes nothing"),
    ("a {b} -> a", 2, "a '{' comes before all axes of an operand"),
    ("{a} b -> a", 4, "a '}' must be followed by ',' or '->'"),
    ("a b c -> {a b c}", 9, "the result has an order, so it takes no braces"),
    ("a: b -> b", 1, "a ':' comes after the name of a group, as in '(name: a b)'"),
    ("a b c -> (m: a (n: b c))", 15, "groups do not nest"),
    ("a b c -> a () b", 11, "a group needs at least one axis"),
    ("a b (c:) -> a b", 4, "a group needs at least one axis"),
    ("a b c -> a (b c)", 11, "a merge needs the name of the new axis: '(name: a b)'"),
    ("{a (b c)} -> a", 3, "within braces a split needs the name of its axis: '(name: a b)'"),
    ("a b (m: ...) -> a", 4, "an axis is split into named axes, not into '...'"),
    ("a b a -> b", 4, "'a' occurs more than once in an operand"),
    ("a b c -> a b a", 13, "'a' occurs more than once in the result"),
    ("a b c -> (m: a b) (m: c)", 18, "'m' occurs more than once in the result"),
    ("... a ... -> a", 6, "'...' may occur only once in an operand"),
    ("{...} -> ... ... a", 13, "between two '...' there must be an axis"),
    ("{...} -> a ... (m: b ...)", 15, "a '...' in a group must be the only one"),
]


@pytest.mark.parametrize(("text", "at", "message"), UNREADABLE, ids=range(len(UNREADABLE)))
def test_a_caret_shows_what_cannot_be_read(text, at, message):
    expected = f"cannot parse '{text}': {message}\n{text}\n{' ' * at}^"
    for call in (lambda: x.rearrange(text), lambda: nym.einsum(text, x)):
        with pytest.raises(ValueError, match=f"^{escape(expected)}$"):
            call()


def test_an_expression_takes_one_line_of_the_error():
    with pytest.raises(ValueError, match=r"^cannot parse 'a b c  ->  \(a': [^\n]*\na b c  ->  \(a\n {11}\^$"):
        x.rearrange("a b c\n ->\t (a")
    with pytest.raises(ValueError, match=r"\n[^\n\r\u2028]{6}\n\^$"):
        x.rearrange("\x00\r\n\u2028\ud800(")


@pytest.mark.parametrize(
    "text", ["a b c->b c a", "  a\tb\nc  -> b c a ", "{...}->b c...a", "{b}->b c ...", "...->b c ..."]
)
def test_blanks_do_not_matter(text):
    assert x.rearrange(text).names == ("b", "c", "a")


def test_identifiers_are_those_of_python():
    assert x.rearrange("_1 größe b2 -> (Größe_: größe b2) _1").shape == {"Größe_": 12, "a": 2}


def test_names_in_quotes_may_be_any():
    y = x.rename({"a": "the a"})
    for text in ("'the a' i k -> k (\"b, a\": i 'the a')", "{'the a' b} -> ... ('b, a': b 'the a')"):
        assert y.rearrange(text).shape == {"c": 4, "b, a": 6}
    assert nym.einsum("'the a' i k, k 'the a' -> i 'the a'", y, y["b", 0].rearrange(("c", ...))).names == ("b", "the a")
