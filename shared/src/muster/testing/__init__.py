"""Fakes and builders that the tests of several services share."""
