"""Claims of tutorials and papers about attention, each tested by an experiment: `regard lab`."""
