"""Networks and heads."""
