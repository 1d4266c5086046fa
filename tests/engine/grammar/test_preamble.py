"""What may stand before what a grammar holds an output to, and the control tokens in it."""

import numpy as np
import pytest
from msgspec import structs

from engine.api import Grammar
from engine.grammar.compiled import CompiledGrammar, GrammarError
from engine.grammar.vocabulary import Vocabulary, load_vocabulary
from tests.engine.grammar.constrained import GRAMMARS, PICK, VOCAB, save_tokenizer
from tests.engine.simulated_model import EOS

PAD, BOS = 0, 1
SPELLED = 'preamble: thought?\nthought: "<think>" rest\nrest[suffix="</think>"]: /(?s:.*)/'
TOKENS = f"preamble: thought?\nthought: <[{PAD}]> /(?s:.*)/ <[{BOS}]>"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    folder = tmp_path_factory.mktemp("preamble")
    save_tokenizer(folder)
    found = load_vocabulary(folder, VOCAB, (EOS,))
    assert found is not None
    return found


def accepts(
    grammar: Grammar, vocabulary: Vocabulary, *parts: str | int, to_end: bool = True
) -> bool:
    """Whether an output of these texts and control tokens can be drawn, to its end or so far."""
    compiled = CompiledGrammar(grammar, vocabulary)
    matcher = compiled.matcher()
    tokens = [
        token
        for part in parts
        for token in (vocabulary.tokenizer.tokenize_str(part) if isinstance(part, str) else [part])
    ]
    for token in [*tokens, EOS] if to_end else tokens:
        words = vocabulary.new_words(1)
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        bits = np.unpackbits((words[0] & compiled.drawable).view(np.uint8), bitorder="little")
        if not bits[token]:
            return False
        assert matcher.consume_token(token)
    return True


def test_a_preamble_may_be_there_or_not_and_the_grammar_holds_behind_it(
    vocabulary: Vocabulary,
) -> None:
    grammar = structs.replace(PICK, preamble=SPELLED)
    assert accepts(grammar, vocabulary, "yes, indeed.")
    assert accepts(grammar, vocabulary, "<think>no < or </thin\n\u00e9</think>yes, indeed.")
    assert accepts(grammar, vocabulary, "<think>", to_end=False)
    assert not accepts(grammar, vocabulary, "<think></think>maybe", to_end=False)
    assert not accepts(grammar, vocabulary, "<think>yes, indeed.")


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind)
def test_every_kind_of_grammar_goes_behind_one(grammar: Grammar, vocabulary: Vocabulary) -> None:
    outputs = {
        "regex": "no, never!",
        "lark": "[1,-2,33]",
        "json_schema": '{"name":"a","kind":"wall","age":7}',
    }
    said = structs.replace(grammar, preamble=SPELLED)
    assert accepts(said, vocabulary, f"<think>so</think>{outputs[grammar.kind]}")
    assert not accepts(said, vocabulary, "<think>so</think>so", to_end=False)


def test_control_tokens_are_drawn_where_they_are_named_and_among_the_tokens(
    vocabulary: Vocabulary,
) -> None:
    grammar = structs.replace(PICK, preamble=TOKENS, tokens=(PAD, BOS))
    assert accepts(grammar, vocabulary, PAD, "let me < see", BOS, "yes, indeed.")
    assert not accepts(grammar, vocabulary, PAD, "so", PAD, to_end=False)
    assert not accepts(structs.replace(grammar, tokens=()), vocabulary, PAD, to_end=False)
    assert not accepts(structs.replace(grammar, tokens=(PAD,)), vocabulary, PAD, BOS, to_end=False)


def test_a_preamble_that_is_none_is_an_error(vocabulary: Vocabulary) -> None:
    with pytest.raises(GrammarError):
        CompiledGrammar(structs.replace(PICK, preamble="preamble: ("), vocabulary)
