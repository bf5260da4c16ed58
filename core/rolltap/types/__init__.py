"""The values that travel through a request, from the client's body to the recorded node."""
