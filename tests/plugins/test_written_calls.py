"""Every native format reads back what it is written as, and a recorded call that a template shows again."""

import random

import pytest

from rolltap import ToolCall
from rolltap.reading import OutputReader
from rolltap.testing.parsing import read_pieces
from written_calls import FORMATS, as_values, some_calls

TEXTS = ["", "I will look it up.", "Ja — gut: 好的", "1 < 2 & 3 > 2."]


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_format_writes_is_read_back(name):
    native = FORMATS[name]
    for seed in range(150):
        chance = random.Random(seed)
        calls = some_calls(chance, native.most_calls)
        text = chance.choice(TEXTS) if native.text_before_calls or not calls else ""
        written = native.write(text, calls)
        for pieces in ([written], list(written)):
            read = read_pieces(OutputReader(native.read()), pieces)
            assert as_values([one for one in read if isinstance(one, ToolCall)]) == calls, written
            assert "".join(one for one in read if isinstance(one, str)) == text
