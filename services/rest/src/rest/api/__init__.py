"""The HTTP API: one router per resource; parse, authorise, call, render."""
