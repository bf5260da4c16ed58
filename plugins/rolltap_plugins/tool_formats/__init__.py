"""The tool-call formats that models are trained on, beside Hermes': one module and one hook each."""
