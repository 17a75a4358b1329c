"""Muster on one machine: everything that `muster up` starts, watches and stops."""
