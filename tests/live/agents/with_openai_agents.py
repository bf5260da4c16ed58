"""OpenAI's Agents SDK: the first argument is the README's setting, the second the task."""

import sys

from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled  # noqa: F401
from openai import AsyncOpenAI  # noqa: F401 - the setting's own names

set_tracing_disabled(True)


@function_tool
def shout(text: str) -> str:
    """Shout a text."""
    return f"{text.upper()}!"


agent = Agent(name="crier", instructions="Be loud.", tools=[shout], model=eval(sys.argv[1]))
print(Runner.run_sync(agent, sys.argv[2]).final_output)  # noqa: T201 - what the test reads
