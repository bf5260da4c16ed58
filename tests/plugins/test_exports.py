"""Every export format against the record: the same ids, masks and logprobs, and nothing besides."""

import json
from unittest import mock

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forests import call, forest_of, forests, leaves, summary
from rolltap import BadRequest, ConfigError, Export, ExportOptions, json_line
from rolltap.record.views import views
from rolltap_plugins.exports import export_format, parquet

MASKED = -100
some = settings(max_examples=40, deadline=None)


def exported(name, nodes, **options):
    """The rows of a format, as they come out of JSON."""
    export = Export(export_format[name](), ExportOptions(**options))
    return [json.loads(json_line(row)) for row in export.rows(summary(), nodes)]


def whole(sequence):
    """(ids, mask, logprobs with None on context) of a node, by its lists."""
    mask = [token != MASKED for token in sequence.masked_tokens]
    logprobs = [value if trained else None for value, trained in zip(sequence.logprobs, mask, strict=True)]
    return sequence.tokens, mask, logprobs


def trained_leaves(forest):
    return [node for node in leaves(forest) if any(token != MASKED for token in node.masked_tokens)]


def context_as(value, logprobs):
    return [value if each is None else each for each in logprobs]


def response(row, prompt, ids, mask, logprobs):
    """The whole sequence of a row that splits prompt and response; it must not split where it should not."""
    size = len(row[prompt])
    assert not any(row[mask]) or row[mask][0] == 1, "the response begins with the first trained token"
    assert [value for value, shown in zip(row[logprobs], row[mask], strict=True) if not shown] == [0.0] * row[
        mask
    ].count(0)
    trained = [False] * size + [bool(shown) for shown in row[mask]]
    values = [None] * size + row[logprobs]
    return row[prompt] + row[ids], trained, values


READERS = {
    "jsonl": lambda row: (row["tokens"], row["mask"], row["logprobs"]),
    "parquet": lambda row: (row["tokens"], row["mask"], row["logprobs"]),
    "trl": lambda row: response(row, "prompt_ids", "completion_ids", "env_mask", "logprobs"),
    "trl-async": lambda row: (row["input_ids"], row["completion_mask"], row["old_log_probs"]),
    "verl": lambda row: response(row, "prompt_ids", "response_ids", "response_mask", "response_logprobs"),
    "skyrl": lambda row: response(row, "prompt_token_ids", "response_ids", "loss_masks", "rollout_logprobs"),
    "prime-rl": lambda row: (row["token_ids"], row["mask"], row["logprobs"]),
    "areal": lambda row: (row["input_ids"][0], row["loss_mask"][0], row["logprobs"][0]),
    "slime": lambda row: (
        row["tokens"],
        [0] * (len(row["tokens"]) - row["response_length"]) + row["loss_mask"],
        [0.0] * (len(row["tokens"]) - row["response_length"]) + row["rollout_log_probs"],
    ),
}
"""How a row of each format with one row a leaf is read back: ids, mask, logprobs."""


@pytest.mark.parametrize("name", READERS)
@some
@given(forest=forests())
def test_a_leaf_is_a_row_with_the_record_s_ids_mask_and_logprobs(name, forest):
    rows = exported(name, leaves(forest))
    for row, node in zip(rows, trained_leaves(forest), strict=True):
        ids, mask, logprobs = whole(node)
        read_ids, read_mask, read_logprobs = READERS[name](row)
        assert (read_ids, [bool(each) for each in read_mask]) == (ids, mask)
        assert [value for value, shown in zip(read_logprobs, mask, strict=True) if shown] == [
            value for value in logprobs if value is not None
        ]


@pytest.mark.parametrize("name", READERS)
@some
@given(forest=forests())
def test_untrainable_leaves_can_be_kept_and_train_nothing(name, forest):
    rows = exported(name, leaves(forest), untrainable="keep")
    assert [READERS[name](row)[0] for row in rows if any(READERS[name](row)[1])] == [
        node.tokens for node in trained_leaves(forest)
    ]
    assert [len(READERS[name](row)[0]) for row in rows] == [len(node.tokens) for node in leaves(forest)]


@some
@given(forest=forests())
def test_atropos_gets_a_session_as_a_group(forest):
    rows, nodes = exported("atropos", leaves(forest)), trained_leaves(forest)
    if not nodes:
        assert rows == []
        return
    (row,) = rows
    assert row["tokens"] == [node.tokens for node in nodes]
    assert row["masks"] == [node.masked_tokens for node in nodes]
    assert row["inference_logprobs"] == [node.logprobs for node in nodes]
    assert row["scores"] == [None] * len(nodes)


@some
@given(forest=forests())
def test_tinker_s_targets_are_the_next_tokens(forest):
    for row, node in zip(exported("tinker", leaves(forest)), trained_leaves(forest), strict=True):
        ids, mask, logprobs = whole(node)
        inputs = {name: tensor["data"] for name, tensor in row["loss_fn_inputs"].items()}
        assert row["model_input"]["chunks"][0]["tokens"] == ids[:-1]
        assert inputs["target_tokens"] == ids[1:]
        assert inputs["mask"] == [float(shown) for shown in mask[1:]]
        assert inputs["logprobs"] == context_as(0.0, logprobs[1:])
        assert {tensor["shape"][0] for tensor in row["loss_fn_inputs"].values()} == {len(ids) - 1}


@pytest.mark.parametrize(
    ("name", "read"),
    [
        (
            "agent-lightning",
            lambda row: (
                row["prompt"]["token_ids"],
                row["response"]["token_ids"],
                row["response"]["log_probs"],
            ),
        ),
        (
            "openenv",
            lambda row: (row["prompt_token_ids"], row["completion_token_ids"], row["per_token_logps"]),
        ),
    ],
)
@some
@given(forest=forests())
def test_a_completion_is_a_row_once_in_all(name, read, forest):
    rows = exported(name, leaves(forest))
    own = {view.node_id: view for view in views(forest, tree=True)}
    trained = [node_id for node_id, view in own.items() if view.metadata["trainable"]]
    assert sorted(row["metadata"]["node_id"] for row in rows) == sorted(trained)
    for row in rows:
        prompt, ids, logprobs = read(row)
        tokens, mask, values = whole(own[row["metadata"]["node_id"]])
        assert prompt + ids == tokens
        assert len(ids) == sum(mask)
        assert logprobs == values[len(prompt) :]


@some
@given(forest=forests())
def test_atif_has_each_trained_completion_once(forest):
    rows = exported("atif", leaves(forest))
    assert [row["trajectory_id"] for row in rows] == [node.node_id for node in trained_leaves(forest)]
    for row, node in zip(rows, trained_leaves(forest), strict=True):
        ids, mask, logprobs = whole(node)
        steps = [step["metrics"] for step in row["steps"] if "logprobs" in step.get("metrics", {})]
        for metrics, span in zip(steps, node.packed.trained, strict=True):
            assert metrics["prompt_token_ids"] + metrics["completion_token_ids"] == ids[: span.stop]
            assert metrics["logprobs"] == logprobs[span.start : span.stop]
        assert sum(len(metrics["completion_token_ids"]) for metrics in steps) == sum(mask)


@some
@given(forest=forests())
def test_versions_stand_on_the_tokens_they_generated(forest):
    nodes = trained_leaves(forest)
    rows, areal, slime = (exported(name, leaves(forest)) for name in ("jsonl", "areal", "slime"))
    for node, row, numbers, sample in zip(nodes, rows, areal, slime, strict=True):
        expected = [None] * len(node.tokens)
        for span in node.packed.trained:
            for start, stop, version in span.versions:
                expected[start:stop] = [version] * (stop - start)
        assert row["versions"] == expected
        assert numbers["versions"] == [[-1 if each is None else int(each) for each in expected]]
        assert sample["weight_versions"] == list(dict.fromkeys(filter(None, expected)))


TWO_TURNS = [
    call("a", None, [1, 2], [([3, 4], [-0.5, -0.25], {"weight_versions": [[0, 2, "7"]]})]),
    call(
        "b",
        "a.0",
        [5],
        [([6], [-1.0], {"weight_versions": [[0, 1, "8"]], "finish_reason": "length"})],
        sampling={"temperature": 0.7},
    ),
]


def test_what_was_generated_is_told_span_by_span():
    (node,) = leaves(forest_of(*TWO_TURNS))
    first, second = node.packed.spans
    assert (first.node_id, first.start, first.stop, first.trained) == ("a.0", 2, 4, True)
    assert (second.node_id, second.start, second.stop, second.finish_reason) == ("b.0", 5, 6, "length")
    assert (first.versions, second.versions) == (((2, 4, "7"),), ((5, 6, "8"),))
    assert node.packed.tokens.tolist() == node.tokens
    assert node.packed.logprobs.tolist() == node.logprobs


def test_trainers_get_versions_status_and_temperatures_in_their_own_words():
    nodes = leaves(forest_of(*TWO_TURNS))
    (verl,), (slime,), (prime,) = (exported(name, nodes) for name in ("verl", "slime", "prime-rl"))
    assert (verl["extra_fields"]["min_global_steps"], verl["extra_fields"]["max_global_steps"]) == (7, 8)
    assert (slime["status"], slime["weight_versions"]) == ("truncated", ["7", "8"])
    assert prime["temperatures"] == [1.0, 1.0, 1.0, 1.0, 1.0, 0.7]
    assert prime["env_name"] == "g"


@pytest.mark.parametrize("name", ["verl", "areal"])
def test_a_version_that_is_no_number_is_an_error_that_names_it(name):
    odd = call("a", None, [1], [([3], [-0.5], {"weight_versions": [[0, 1, "step-a"]]})])
    with pytest.raises(BadRequest, match=r"'step-a' is not a whole number.*'jsonl'"):
        exported(name, leaves(forest_of(odd)))


def test_nodes_without_anything_to_train_on_are_left_out_and_counted():
    nodes = leaves(
        forest_of(
            call("a", None, [1], [([3], [-0.5], {})]),
            call("b", None, [1], [([3], None, {"untrainable_reason": "no logprobs"})]),
            call("c", None, [], [([], None, {"text": "Hello.", "untrainable_reason": "text-only"})]),
        )
    )
    export = Export(export_format["jsonl"](), ExportOptions())
    assert [row["node_id"] for row in export.rows(summary(), nodes)] == ["a.0"]
    assert export.summary() == {"left_out": {"untrainable": 2}}
    kept = Export(export_format["jsonl"](), ExportOptions(untrainable="keep"))
    assert [(row["node_id"], sum(row["mask"])) for row in kept.rows(summary(), nodes)] == [
        ("a.0", 1),
        ("b.0", 0),
        ("c.0", 0),
    ]
    assert not kept.left_out


def test_an_untrainable_end_does_not_take_the_turns_before_it_away():
    nodes = leaves(
        forest_of(
            call("a", None, [1], [([3], [-0.5], {})]),
            call("b", "a.0", [4], [([5], None, {"untrainable_reason": "no logprobs"})]),
        )
    )
    (row,) = exported("jsonl", nodes)
    assert (row["tokens"], row["mask"]) == ([1, 3, 4, 5], [False, True, False, False])


def test_columns_are_collected_as_trl_s_rollout_func_returns_them():
    forest = forest_of(call("a", None, [1], [([3], [-0.5], {}), ([4, 5], [-1.0, -2.0], {})]))
    trl = export_format["trl"]()
    batch = trl.collect(trl.rows(summary(), leaves(forest)))
    assert batch["prompt_ids"] == [[1], [1]]
    assert batch["completion_ids"] == [[3], [4, 5]]
    assert batch["logprobs"] == [[-0.5], [-1.0, -2.0]]
    assert batch["env_mask"] == [[1], [1, 1]]


@pytest.mark.parametrize("name", ["skyrl", "atropos"])
def test_what_has_no_reward_is_not_collected(name):
    kind = export_format[name]()
    rows = list(kind.rows(summary(), leaves(forest_of(*TWO_TURNS))))
    with pytest.raises(BadRequest, match="no reward; POST /SESSION/reward"):
        kind.collect(rows)


def test_skyrl_counts_the_sessions_of_a_group():
    kind, nodes = export_format["skyrl"](), leaves(forest_of(*TWO_TURNS))
    rows = [row for uuid in ("s1", "s2") for row in kind.rows(summary(uuid=uuid), nodes)]
    assert [row["trajectory_ids"] for row in rows] == [
        {"instance_id": "g", "repetition_id": 0},
        {"instance_id": "g", "repetition_id": 1},
    ]


def test_a_wrong_option_is_named():
    with pytest.raises(BadRequest, match="untrainable='maybe': it is 'drop'"):
        ExportOptions.of(untrainable="maybe")


def test_a_format_of_lines_makes_no_columns(tmp_path):
    with pytest.raises(ConfigError, match=r"out\.parquet: the format 'trl' is written to .* \.jsonl"):
        export_format["trl"]().open(tmp_path / "out.parquet")


def parquet_rows(path):
    table = pq.read_table(path)
    assert table.schema.metadata[b"rolltap_schema_version"] == b"1"
    rows = table.to_pylist()
    for row in rows:
        for name in ("label", "rewards", "messages", "tools", "metadata"):
            row[name] = None if row[name] is None else json.loads(row[name])
    return rows


@some
@given(sessions=st.lists(forests(), max_size=4), group_size=st.integers(1, 20))
def test_a_parquet_file_holds_the_rows_of_jsonl(tmp_path_factory, sessions, group_size):
    folder = tmp_path_factory.mktemp("parquet")
    lines = [row for forest in sessions for row in exported("jsonl", leaves(forest))]
    packed, sent = folder / "packed.parquet", folder / "sent.parquet"
    with mock.patch.object(parquet, "ROW_GROUP_TOKENS", group_size):
        with export_format["parquet"]().open(packed) as file:
            written = [file.write(summary(), trained_leaves(forest)) for forest in sessions]
        with export_format["parquet"]().open(sent) as file:
            assert file.write_rows(lines) == len(lines)
    assert sum(written) == len(lines)
    assert parquet_rows(packed) == parquet_rows(sent) == lines


def test_parquet_s_rows_are_written_as_lines_too(tmp_path):
    nodes = leaves(forest_of(*TWO_TURNS))
    for name in ("parquet", "jsonl"):
        with export_format[name]().open(tmp_path / f"{name}.jsonl") as file:
            assert file.write(summary(), nodes) == 1
    assert (tmp_path / "parquet.jsonl").read_bytes() == (tmp_path / "jsonl.jsonl").read_bytes()


def test_without_pyarrow_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'rolltap\[parquet\]', or export to a \.jsonl file"):
        export_format["parquet"]().open(tmp_path / "out.parquet")
