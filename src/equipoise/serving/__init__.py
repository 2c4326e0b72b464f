"""Everything after training: move logits to another prior, estimate a prior, calibrate, wrap, export."""
