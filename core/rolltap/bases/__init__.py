"""The bases that plugins subclass."""
