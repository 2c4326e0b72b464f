"""Everything after training: move logits to another prior, estimate it, calibrate, wrap, export."""
