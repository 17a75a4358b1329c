"""The public formats: clusters, events and decisions, as docs/simulator.md has them.

Reading is strict and tells all that is wrong at once, each with its line, its field and its mend.
What is written here is read here as the same.
"""
