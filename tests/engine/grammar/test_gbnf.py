"""GBNF becomes Lark that says the same, or is refused with what is wrong."""

import pytest

from engine.api import Grammar
from engine.grammar.gbnf import in_lark, is_gbnf
from engine.grammar.source import problem_of

LIST = """
# a list
root ::= "- " item ("," item)*
item ::= [a-z]+ | number
number ::= [0-9]{1,3} "\\n"?
"""


def gbnf(source: str) -> Grammar:
    return Grammar(kind="lark", source=source)


def test_it_is_told_from_lark() -> None:
    assert is_gbnf(gbnf(LIST))
    assert not is_gbnf(gbnf('start: "::=" | a\na: "x"'))
    assert not is_gbnf(Grammar(kind="regex", source="a ::= b"))


def test_it_is_read_as_lark_that_can_be_compiled() -> None:
    read = in_lark(gbnf(LIST))
    assert read.kind == "lark"
    assert "start:" in read.source
    assert problem_of(read) is None


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("root ::= item", "item"),
        ("tree ::= [a]", "root"),
        ("root ::= [a", "end of input"),
        ("root ::= " + "(" * 5000, "deeply"),
        ("root ::= [a]\n" * 2000, "bytes"),
        ("\n".join(["root ::= [a]", *(f"r{n} ::= [b]" for n in range(300))]), "rules"),
        ("root ::= \\", "Expected"),
    ],
)
def test_what_is_wrong_is_told(source: str, told: str) -> None:
    assert is_gbnf(gbnf(source))
    with pytest.raises(ValueError, match=told):
        in_lark(gbnf(source))
