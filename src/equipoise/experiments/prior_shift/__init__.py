"""What the prior is worth when it changes."""
