"""Dashboards and alert rules, once: files, pages and tests are made from these."""
