"""A turn: one request at one backend, from the prompt that is sent to what is recorded of the answer."""
