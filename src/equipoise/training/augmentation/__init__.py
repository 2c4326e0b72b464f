"""Augmentation in batches, on the device of the data, bitwise equal to Pillow."""
