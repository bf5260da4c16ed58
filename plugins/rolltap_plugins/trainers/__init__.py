"""Trainers' own hooks, on top of `rolltap.client`: each module is imported by whoever uses that trainer."""
