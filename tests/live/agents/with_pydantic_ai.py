"""pydantic-ai: the first argument is the README's setting, the second the task."""

import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel  # noqa: F401 - the setting's own name
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: F401 - as above

agent = Agent(eval(sys.argv[1]))


@agent.tool_plain
def shout(text: str) -> str:
    """Shout a text."""
    return f"{text.upper()}!"


print(agent.run_sync(sys.argv[2]).output)  # noqa: T201 - what the test reads
