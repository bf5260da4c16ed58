"""Where sessions' logs are kept: one plugin a store."""
