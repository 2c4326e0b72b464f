"""Losses for several labels per image, on the long-tailed photographs of VOC-MLT."""
