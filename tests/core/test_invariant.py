"""The invariant under random rollouts, for every style of chat template."""

import pytest

from random_rollouts import rollouts
from rolltap.testing.tokenizers import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
async def test_every_node_is_what_was_sent_and_returned(family, tmp_path):
    counts = await rollouts(str(FAMILIES[family].build(tmp_path)), seed=7, turns=150)
    assert counts["extended"] > counts["turns"] / 3
