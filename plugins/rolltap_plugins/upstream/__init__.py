"""What backends share that ask somebody else's server: options, the HTTP client, event streams, errors, engines that
rolltap starts itself, and Chat Completions as its clients speak it (the dialect "openai.chat" is the server's side).
"""
