"""The fixtures that rolltap has for its plugins: a real server, a real tokenizer, and a model that says what it is told."""

pytest_plugins = ["rolltap.testing"]
