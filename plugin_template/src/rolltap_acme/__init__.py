"""Plugins for rolltap, a module each."""
