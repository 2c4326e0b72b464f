"""Where labels and images come from: counting, the seeded long-tailed draw, and readers of official file layouts."""
