"""Figures and pages made from evaluations and records."""
