"""Pictures of a record: in the terminal, as figures, as one HTML page. Drawn from records, never from tensors."""
