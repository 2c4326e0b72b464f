"""This repository's documents from its records: what `equipoise table NAME --write` needs. In no wheel."""
