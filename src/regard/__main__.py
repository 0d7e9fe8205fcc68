"""`python -m regard`, which `accelerate launch -m regard` and `torchrun -m regard` start too."""

from regard.cli import main

if __name__ == "__main__":
    main()
