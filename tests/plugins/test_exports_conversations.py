"""Formats that tell a conversation, not only tokens: ATIF and OpenEnv."""

import json

from forests import CONVERSATION, call, forest_of, leaves, summary
from rolltap import Export, ExportOptions, json_line
from rolltap_plugins.exports import export_format


def exported(name, nodes):
    return [json.loads(json_line(row)) for row in export_format[name]().rows(summary(), nodes)]


def test_atif_tells_a_conversation_step_by_step():
    (row,) = exported("atif", leaves(forest_of(*CONVERSATION)))
    system, example, user, search, stray, answer = row["steps"]
    assert [step["step_id"] for step in row["steps"]] == [1, 2, 3, 4, 5, 6]
    assert (system["source"], system["message"]) == ("system", "Be brief.")
    assert "metrics" not in example, "what was only shown to the model is no inference"
    assert user["message"][1] == {
        "type": "image",
        "source": {"media_type": "image/gif", "path": "data:image/gif;base64,R0lG"},
    }
    assert search["reasoning_content"] == "Look it up."
    assert search["tool_calls"] == [
        {"tool_call_id": "c1", "function_name": "search", "arguments": {"q": "rolltap"}},
        {
            "tool_call_id": "c2",
            "function_name": "odd",
            "arguments": {},
            "extra": {"arguments": "[1]"},
        },
    ]
    assert search["observation"] == {"results": [{"content": "rolltap: …", "source_call_id": "c1"}]}
    assert stray["observation"] == {"results": [{"content": "Nobody asked."}]}
    assert (search["metrics"]["completion_token_ids"], answer["metrics"]["completion_token_ids"]) == (
        [3],
        [5],
    )
    assert row["final_metrics"] == {
        "total_prompt_tokens": 6,
        "total_completion_tokens": 2,
        "total_cached_tokens": 0,
        "total_steps": 6,
    }


def test_openenv_tells_what_each_completion_was_asked():
    first, second = exported("openenv", leaves(forest_of(*CONVERSATION)))
    assert [message["role"] for message in first["request"]["messages"]] == ["system", "assistant", "user"]
    assert first["response"]["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "search"
    assert len(second["request"]["messages"]) == 6
    assert second["response"]["choices"][0]["message"]["content"] == "A middleware."


def test_a_sub_agent_stands_inside_the_main_trajectory():
    main, other = leaves(
        forest_of(call("a", None, [1], [([2], [-0.5], {})]), call("b", None, [3], [([4], [-0.5], {})]))
    )
    main.label, other.label = "main", "sub-agent"
    (row,) = exported("atif", [main, other])
    assert (row["trajectory_id"], row["extra"]["lineage"]) == ("a.0", "main")
    assert [each["trajectory_id"] for each in row["subagent_trajectories"]] == ["b.0"]
    export = Export(export_format["jsonl"](), ExportOptions(lineage="main"))
    assert [each["node_id"] for each in export.rows(summary(), [main, other])] == ["a.0"]
    assert export.left_out == {"lineage": 1}
