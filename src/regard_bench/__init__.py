"""How fast regard is here: ratios against peers and the machine's limit, each measured in one run, side by side."""
