"""LangChain: the first argument is the README's setting, the second the task."""

import sys

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI  # noqa: F401 - the setting's own name


def shout(text: str) -> str:
    """Shout a text."""
    return f"{text.upper()}!"


agent = create_agent(eval(sys.argv[1]), tools=[shout])
print(agent.invoke({"messages": [("user", sys.argv[2])]})["messages"][-1].content)  # noqa: T201 - what the test reads
