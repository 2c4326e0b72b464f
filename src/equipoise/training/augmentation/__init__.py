"""Augmentation in batches, on the device of the data, equal to Pillow to the bit."""
