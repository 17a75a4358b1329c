"""All SQL of REST: rows in, domain values out."""
