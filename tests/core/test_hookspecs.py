"""The hooks are an interface: their names and arguments are fixed, and each is documented."""

import inspect

import pytest

from rolltap import hookspecs
from rolltap.plugins import HOOKS

SIGNATURES = {
    "tool_parser": ("name", "tools", "tokenizer"),
    "reasoning_parser": ("name", "tokenizer"),
    "create_backend": ("kind", "options", "model"),
    "message_converter": ("dialect",),
    "select_backend": ("request", "session", "backends"),
    "record_node": ("session", "node"),
    "classify_error": ("error", "backend"),
    "create_store": ("kind", "options"),
    "export_format": ("name",),
    "label_tree": ("tree", "session"),
    "register_commands": ("cli",),
    "register_routes": ("app", "server"),
    "offers": (),
}


def test_the_hooks_and_their_arguments_are_those_that_plugins_rely_on():
    assert HOOKS == SIGNATURES


@pytest.mark.parametrize("hook", SIGNATURES)
def test_every_hook_is_documented(hook):
    text = inspect.getdoc(getattr(hookspecs, hook)) or ""
    assert "Asked: " in text, "says when it is asked"
    assert "answer wins" in text or "Every plugin is asked" in text, "says whose answer counts"
    for argument in HOOKS[hook]:
        assert f":param {argument}: " in text
    assert "\nExample: " in text, "has an example, which tests/http/test_hook_examples.py tries"


@pytest.mark.parametrize("hook", SIGNATURES)
def test_every_hook_is_typed(hook):
    signature = inspect.signature(getattr(hookspecs, hook))
    assert signature.return_annotation is not signature.empty
    assert all(parameter.annotation is not parameter.empty for parameter in signature.parameters.values())
