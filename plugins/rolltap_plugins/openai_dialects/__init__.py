"""OpenAI's wire formats: Chat Completions, Completions and Responses, one plugin each."""
