"""What backends share that ask somebody else's server: options, event streams, errors, and Chat Completions as its
clients speak it (the dialect "openai.chat" is the server's side of the same format).
"""
