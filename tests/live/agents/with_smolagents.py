"""smolagents: the first argument is the README's setting, the second the task."""

import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool  # noqa: F401 - the setting's own name


@tool
def shout(text: str) -> str:
    """Shout a text.

    Args:
        text: what to shout
    """
    return f"{text.upper()}!"


agent = ToolCallingAgent(tools=[shout], model=eval(sys.argv[1]), verbosity_level=0)
print(agent.run(sys.argv[2]))  # noqa: T201 - what the test reads
