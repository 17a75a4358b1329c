"""The public formats: clusters, events and decisions, as docs/simulator.md has them.

Reading is strict and reports all problems at once, each with its line, its field and its fix.
Muster reads back the same values that it writes here.
"""
