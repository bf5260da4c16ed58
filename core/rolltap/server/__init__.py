"""The HTTP server: everything between a socket and the pipeline."""
