"""What tutorials and papers say about attention, each claim an experiment that runs: `regard lab`."""
