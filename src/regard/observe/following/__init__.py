"""What tensors are made of, and attention written by hand, followed operator by operator where it is not known yet."""
