"""Samplers that decide which item comes next; they only produce indices."""
