"""The record of a session: which call extends which, and what a trainer gets of it."""
