"""The agent that the trainers' scripts let play: two turns by the openai package, rewarded by what was said."""

import openai

QUESTION = "Say something."
MODEL = "test-model"


def agent(session, task):
    """Two turns; the reward is the length of the last answer."""
    client = openai.OpenAI(base_url=session.base_url, api_key="unused", max_retries=0)
    messages = [{"role": "user", "content": question(task)}]
    for _ in range(2):
        reply = client.chat.completions.create(model=MODEL, messages=messages)
        said = reply.choices[0].message.content
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "And?"}]
    return float(len(said))


def question(task):
    """The text of a task, as each trainer hands it on."""
    if isinstance(task, str):
        return task
    if isinstance(task, dict):
        task = task["raw_prompt"]
    return task[-1]["content"]
