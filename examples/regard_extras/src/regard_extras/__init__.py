"""One extension of each kind for regard: a statistic, a renderer, a loader of models."""
